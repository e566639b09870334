"""A picture of log directories: one HTML page with sizes, rates, retention, lags, keys and damage.

`contents` reads what the page shows, and `page` draws it by the template `page.html`; Jinja is imported there alone.
It may import the store and what is below. Begin with `contents.ReportContents`.
"""
