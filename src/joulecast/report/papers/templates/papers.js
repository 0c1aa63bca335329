// A click on a head sorts its table: numbers by value, words by letter, what is empty last.
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.onclick = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const text = (row) => row.cells[place].textContent.trim();
      const value = (row) => Number(text(row).replace(/[,>]/g, ""));
      const rows = [...table.tBodies[0].rows];
      const numbers = rows.some((row) => text(row) !== "—" && !isNaN(value(row)));
      rows.sort((a, b) => {
        const empty = (text(a) === "—") - (text(b) === "—");
        if (empty) return empty;
        const order = numbers ? value(a) - value(b) || 0 : text(a).localeCompare(text(b));
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    };
  });
}
