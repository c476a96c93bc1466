package repaircmd

// OptionsOf are the options that the controller would be made with, less the API server.
var OptionsOf = Settings.options
