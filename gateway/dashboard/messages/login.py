"""Words of the log-in and of errors."""

from __future__ import annotations

EN: dict[str, str] = {
    "login.title": "Log in",
    "login.name": "Name",
    "login.password": "Password",
    "login.submit": "Log in",
    "login.wrong": "Name or password is wrong.",
    "login.slow_down": "Too many tries. Wait {minutes} min and try again.",
    "login.no_admin": "There is no admin yet. Make one on the gateway's machine:",
    "login.logged_in_as": "Logged in as {name}",
    "login.log_out": "Log out",
    "login.welcome": "You are logged in.",
    "error.title": "This did not work",
    "error.back": "Back to the dashboard",
    "role.viewer": "Viewer",
    "role.operator": "Operator",
    "role.owner": "Owner",
}

ZH: dict[str, str] = {
    "login.title": "登录",
    "login.name": "用户名",
    "login.password": "密码",
    "login.submit": "登录",
    "login.wrong": "用户名或密码错误。",
    "login.slow_down": "尝试次数过多。请等待 {minutes} 分钟后重试。",
    "login.no_admin": "还没有管理员。请在网关所在的机器上创建：",
    "login.logged_in_as": "已登录：{name}",
    "login.log_out": "退出登录",
    "login.welcome": "您已登录。",
    "error.title": "操作未成功",
    "error.back": "返回控制台",
    "role.viewer": "查看者",
    "role.operator": "操作员",
    "role.owner": "所有者",
}
