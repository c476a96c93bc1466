package rtnetlink

var Actions = actions
