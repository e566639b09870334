// The theme loads Mermaid from a foreign host unless `mermaid` exists. This one loads the site's own copy, and only
// on a page with a diagram.
let settings;
window.mermaid = {
    initialize: (given) => {
        // The theme names the arrowheads as an older Mermaid did; without a colour they are black in the dark, too.
        const arrowheads = "marker path { fill: var(--md-mermaid-edge-color) !important; }";
        settings = { ...given, themeCSS: given.themeCSS + arrowheads };
    },
    render: async (...diagram) => {
        const { mermaid } = await import("./mermaid/index.js");
        mermaid.initialize(settings);
        const drawn = await mermaid.render(...diagram);
        // A diagram stays readable on a narrow screen, where its frame scrolls.
        const width = "max-width: $1; min-width: min($1, 36rem)";
        return { ...drawn, svg: drawn.svg.replace(/max-width: ([\d.]+px)/, width) };
    },
};
