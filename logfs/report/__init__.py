"""A picture of log directories: one HTML page with sizes, rates, retention, lags, keys and damage.

`contents` reads what the page shows, and `page` draws it by the template `page.html`. Only `page` imports Jinja. This
package may import `logfs.store` and the packages below it. Begin with `contents.ReportContents`.
"""
