"use strict";
(() => {
  const MARGIN = 8;

  const number = (value) => {
    if (value === null) return "no value";
    const size = Math.abs(value);
    if (size >= 10000) return Math.round(value).toLocaleString("en-US");
    if (size !== 0 && size < 1e-3) return value.toExponential(3).replace(/\.?0+e/, "e");
    return String(Number(value.toPrecision(4)));
  };

  // Index of the point whose step is nearest to `step`.
  const nearest = (points, step) => {
    let low = 0;
    let high = points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < step) low = middle + 1;
      else high = middle;
    }
    const isEarlierNearer = low > 0 && step - points[low - 1][0] < points[low][0] - step;
    return isEarlierNearer ? low - 1 : low;
  };

  const span = (className, text) => {
    const element = document.createElement("span");
    element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  const follow = (figure) => {
    const data = JSON.parse(figure.querySelector(".chart-data").textContent);
    const plot = figure.querySelector(".plot");
    const readout = figure.querySelector(".readout");
    const steps = [...new Set(data.lines.flatMap((line) => line.points.map(([step]) => step)))];
    steps.sort((a, b) => a - b);
    const hasSeveralRuns = document.querySelectorAll("h1 .run-name").length > 1;
    const cursor = span("cursor");
    const marks = data.lines.map((line) => span(`mark run${line.run}`));
    plot.append(cursor, ...marks);
    let current = null;

    const across = (step) => (100 * (step - data.x[0])) / (data.x[1] - data.x[0]);
    const down = (value) => 100 - (100 * (value - data.y[0])) / (data.y[1] - data.y[0]);

    const hide = () => {
      current = null;
      plot.classList.remove("active");
      readout.replaceChildren();
    };

    const show = (place) => {
      current = Math.max(0, Math.min(steps.length - 1, place));
      const step = steps[current];
      plot.classList.add("active");
      cursor.style.left = `${across(step)}%`;
      const rows = data.lines.map((line, index) => {
        const [at, value] = line.points[nearest(line.points, step)];
        const mark = marks[index];
        mark.hidden = value === null;
        mark.style.left = `${across(at)}%`;
        mark.style.top = `${down(value)}%`;
        const row = span(`row run${line.run}`);
        if (hasSeveralRuns) row.append(span(`badge run${line.run}`, String.fromCharCode(65 + line.run)));
        row.append(span("read", number(value)));
        if (at !== step) row.append(span("at", ` at step ${at.toLocaleString("en-US")}`));
        return row;
      });
      readout.replaceChildren(span("step", `step ${step.toLocaleString("en-US")}`), ...rows);
      const room = plot.clientWidth - readout.offsetWidth;
      const left = (across(step) / 100) * plot.clientWidth + MARGIN;
      const flipped = left - 2 * MARGIN - readout.offsetWidth;
      readout.style.left = `${left <= room ? left : Math.max(0, flipped)}px`;
    };

    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      const step = data.x[0] + share * (data.x[1] - data.x[0]);
      show(nearest(steps.map((one) => [one]), step));
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("focus", () => {
      if (current === null && plot.matches(":focus-visible")) show(steps.length - 1);
    });
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const leap = event.shiftKey ? 10 : 1;
      const at = current ?? steps.length - 1;
      const places = {
        ArrowLeft: at - leap,
        ArrowRight: at + leap,
        Home: 0,
        End: steps.length - 1,
      };
      if (event.key === "Escape") hide();
      else if (event.key in places) {
        event.preventDefault();
        show(places[event.key]);
      }
    });
  };

  document.querySelectorAll("figure.chart").forEach(follow);

  // Open folded sections for printing, and close them again afterwards.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((details) => (details.open = true));
  });
  window.addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
})();
