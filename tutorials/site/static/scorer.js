// The weights of Sphinx's search. The page that explains messages comes before pages that mention them.
var Scorer = {
  score: ([page, , , , score]) => score + (page === "troubleshooting" ? 20 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
