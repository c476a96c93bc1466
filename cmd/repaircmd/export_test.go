package repaircmd

import "github.com/meshcni/meshcni/cmd/internal/apiserver"

// OptionsOf are the options that the controller would be made with, less the API server.
var OptionsOf = Settings.options

// WithAccess returns the settings with another way to the API server.
func WithAccess(s Settings, a apiserver.Access) Settings {
	s.access = a
	return s
}
