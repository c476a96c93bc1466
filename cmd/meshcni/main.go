// Command meshcni is the CNI plugin. Package plugin says what it does; this program only supplies the dialects and the source of pods. A container
// runtime may start it by itself: see package preinstalled.
package main

import (
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/node/preinstalled"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

func main() {
	p := plugin.Plugin{Dialects: builtin.All(), OpenPods: kubepod.Open}
	preinstalled.Exec(p)
	p.Exec()
}
