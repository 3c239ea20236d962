"""The pages that are written from code, one module each: `page()` is the text of the page of that name in docs/."""
