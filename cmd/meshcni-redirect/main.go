// Command meshcni-redirect explains, prints, traces, shows, applies, checks,
// removes and validates the redirection of one pod. It needs no cluster.
package main

import "github.com/meshcni/meshcni/cmd/redirectcmd"

func main() { redirectcmd.Program{}.Exec() }
