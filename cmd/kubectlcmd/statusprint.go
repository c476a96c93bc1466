package kubectlcmd

import (
	"cmp"
	"io"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/internal/visible"
)

func (s clusterStatus) print(to io.Writer, output string) error {
	switch output {
	case "json":
		return printers.JSON(to, s)
	case "yaml":
		text, err := yaml.Marshal(s)
		if err == nil {
			_, err = to.Write(text)
		}
		return err
	}
	w := visible.To(to)
	table := w.Table()
	table.Printf("NODE\tSTATE\tVERSION\tDIALECTS\tBACKEND\tCAPTURED\tOUTSIDE\tWAITING\tDRIFTED\tFAILED\tUNKNOWN\n")
	for _, n := range s.Nodes {
		table.Printf("%s\t%s\t%s\t%s\t%s", n.Node, n.State, cmp.Or(n.Version, "-"), cmp.Or(strings.Join(n.Dialects, ","), "-"), cmp.Or(n.Backend, "-"))
		n.Pods.columns(table)
	}
	if len(s.Nodes) != 1 {
		table.Printf("%s\t%d ready\t\t\t", many(len(s.Nodes), "node", "nodes"), s.Ready)
		s.Total.columns(table)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		for _, why := range n.Why {
			if n.State != stateNoAgent { // the state says it
				w.Printf("%s is %s: %s\n", n.Node, n.State, why)
			}
		}
		for _, text := range n.Warnings {
			w.Printf("%s: warning: %s\n", n.Node, text)
		}
	}
	for _, p := range s.Wrong {
		w.Printf("pod %s/%s is %s: %s: %s\n", p.Namespace, p.Name, p.State, p.Reason, cmp.Or(p.Detail, "no detail"))
	}
	if n := s.WrongPods - len(s.Wrong); n > 0 {
		w.Printf("and %s\n", many(n, "more pod", "more pods"))
	}
	for _, text := range s.Next {
		w.Printf("next: %s\n", text)
	}
	return w.Err()
}

// many is a number with the words for one or for several.
func many(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + several
}

func (n *counts) columns(table *visible.Table) {
	if n == nil {
		table.Printf("\t-\t-\t-\t-\t-\t-\n")
		return
	}
	table.Printf("\t%d\t%d\t%d\t%d\t%d\t%d\n", n.Captured, n.Outside, n.Waiting, n.Drifted, n.Failed, n.Unknown)
}
