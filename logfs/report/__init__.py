"""A report about log directories: one HTML page with sizes, rates, retention, lags, keys and damage.

`contents` reads the data of the page, and `page` renders them by the template `page.html`. Only `page` imports Jinja.
This package may import `logfs.store` and the packages below it. Begin with `contents.ReportContents`.
"""
