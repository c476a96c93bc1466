// Package hookfile says where the plugin lies for the container runtime to start it by itself, and what it then goes by.
//
// A runtime takes each executable file of its directory for a plugin, and does not start at all for one whose name does not begin with two digits. So all
// but a link, which is made at once, is in a directory of ours below it, where files may be written and left half-written.
package hookfile

import (
	"encoding/json"
	"path/filepath"
)

// Index is the plugin's place among those of the runtime.
const Index = "90"

// Place are the paths of a plugin in a runtime's directory.
type Place struct {
	// Link is what the runtime starts. It leads to Target, as Link has it, which is Program. Dir has Program and Settings.
	Link, Target, Dir, Program, Settings string
}

// In returns the places of a plugin of that name.
func In(dir, plugin string) Place {
	own := "." + plugin
	return Place{
		Link: filepath.Join(dir, Index+"-"+plugin), Target: filepath.Join(own, plugin),
		Dir: filepath.Join(dir, own), Program: filepath.Join(dir, own, plugin), Settings: filepath.Join(dir, own, "settings.json"),
	}
}

// Settings are those of a plugin that the runtime starts, which gives it no flags.
type Settings struct {
	// Gate: it captures no pod, but refuses the containers of those that are not.
	Gate bool `json:"gate,omitempty"`
	// Entry is the plugin's entry in the network configuration.
	Entry json.RawMessage `json:"entry"`
}
