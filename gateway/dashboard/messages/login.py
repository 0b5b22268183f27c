"""Words of the log-in and of errors."""

from __future__ import annotations

TEXTS: dict[str, tuple[str, str]] = {
    "login.title": ("Log in", "登录"),
    "login.name": ("Name", "用户名"),
    "login.password": ("Password", "密码"),
    "login.submit": ("Log in", "登录"),
    "login.wrong": ("Name or password is wrong.", "用户名或密码错误。"),
    "login.slow_down": (
        "Too many tries. Wait {minutes} min and try again.",
        "尝试次数过多。请等待 {minutes} 分钟后重试。",
    ),
    "login.no_admin": (
        "There is no admin yet. Make one on the gateway's machine:",
        "还没有管理员。请在网关所在的机器上创建：",
    ),
    "login.logged_in_as": ("Logged in as {name}", "已登录：{name}"),
    "login.log_out": ("Log out", "退出登录"),
    "login.welcome": ("You are logged in.", "您已登录。"),
    "error.title": ("This did not work", "操作未成功"),
    "error.back": ("Back to the dashboard", "返回控制台"),
    "role.viewer": ("Viewer", "查看者"),
    "role.operator": ("Operator", "操作员"),
    "role.owner": ("Owner", "所有者"),
}
