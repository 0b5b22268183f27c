"""Words of the frame around every page."""

from __future__ import annotations

EN: dict[str, str] = {
    "nav.now": "Now",
    "nav.endpoints": "Models & endpoints",
    "nav.pages": "Pages",
    "nav.skip": "Skip to content",
    "theme.label": "Theme",
    "theme.auto": "As the system",
    "theme.light": "Light",
    "theme.dark": "Dark",
    "language.other": "中文",
    "language.switch": "切换为中文",
    "shortcuts.title": "Keyboard",
    "shortcuts.filter": "Filter this page",
    "shortcuts.this": "Show these keys",
    "shortcuts.close": "Close",
    "copy.button": "Copy",
    "copy.done": "Copied",
    "assets.missing": "The browser libraries are not built, so charts and live filters are "
    "missing. To have them: run “make run” where npm or the package index can be reached.",
}

ZH: dict[str, str] = {
    "nav.now": "实时",
    "nav.endpoints": "模型与端点",
    "nav.pages": "页面",
    "nav.skip": "跳到正文",
    "theme.label": "主题",
    "theme.auto": "跟随系统",
    "theme.light": "浅色",
    "theme.dark": "深色",
    "language.other": "English",
    "language.switch": "切换为英文 (Switch to English)",
    "shortcuts.title": "键盘快捷键",
    "shortcuts.filter": "筛选本页",
    "shortcuts.this": "显示快捷键",
    "shortcuts.close": "关闭",
    "copy.button": "复制",
    "copy.done": "已复制",
    "assets.missing": "浏览器库尚未构建，图表和实时筛选不可用。"
    "请在可以访问 npm 或软件包索引的环境中运行 “make run”。",
}
