// Names what a reader with a screen reader, a keyboard or a narrow screen could not tell otherwise.

function labelCells(table) {
  const heads = [...table.querySelectorAll("thead th")].map((head) => head.innerText.trim());
  if (heads.length < 2) return;
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].forEach((cell, column) => {
      if (column && heads[column]) cell.dataset.label = heads[column];
    });
  }
  table.classList.add("labelled");
  table.classList.toggle("many-columns", heads.length > 5);
  // Markdown needs a head for each column. One without a name says nothing.
  for (const head of table.querySelectorAll("thead th")) {
    if (!head.innerText.trim()) head.outerHTML = "<td></td>";
  }
}

const phone = window.matchMedia("(max-width: 46em)");

// On a phone, and where the table is wider than the page, each row becomes a block.
function stackRows() {
  for (const table of document.querySelectorAll("table.labelled")) {
    table.classList.remove("stacked");
    const box = table.closest(".table-wrapper");
    const fits = !box || box.scrollWidth <= box.clientWidth;
    table.classList.toggle("stacked", phone.matches || !fits);
  }
}

function makeFocusable(box) {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("article table").forEach(labelCells);
  stackRows();
  window.addEventListener("resize", stackRows);
  document.querySelectorAll("article pre, .table-wrapper, .math-wrapper").forEach(makeFocusable);
  document.querySelectorAll("p.caption[role=heading]").forEach((each) => {
    each.setAttribute("aria-level", "2");
  });
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  for (const icons of document.querySelectorAll(".content-icon-container")) {
    icons.setAttribute("role", "navigation");
    icons.setAttribute("aria-label", "Source and colours of this page");
  }
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "This page");
});
