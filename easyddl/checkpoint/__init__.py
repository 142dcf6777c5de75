"""What a training needs to go on where it was: files, random states."""
