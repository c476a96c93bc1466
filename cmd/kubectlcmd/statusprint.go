package kubectlcmd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
)

func (s clusterStatus) print(w io.Writer, output string) error {
	switch output {
	case "json":
		return printJSON(w, s)
	case "yaml":
		text, err := yaml.Marshal(s)
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tSTATE\tVERSION\tDIALECTS\tBACKEND\tCAPTURED\tOUTSIDE\tWAITING\tDRIFTED\tBYPASSING")
	for _, n := range s.Nodes {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", n.Node, n.State, cmp.Or(n.Version, "-"), cmp.Or(strings.Join(n.Dialects, ","), "-"), cmp.Or(n.Backend, "-"), n.Pods.columns())
	}
	if len(s.Nodes) != 1 {
		fmt.Fprintf(table, "%s\t%d ready\t\t\t\t%s\n", many(len(s.Nodes), "node", "nodes"), s.Ready, s.Total.columns())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		for _, why := range n.Why {
			if n.State != stateNoAgent { // the state says it
				fmt.Fprintf(w, "%s is %s: %s\n", n.Node, n.State, why)
			}
		}
		for _, text := range n.Warnings {
			fmt.Fprintf(w, "%s: warning: %s\n", n.Node, text)
		}
	}
	for _, p := range s.Wrong {
		fmt.Fprintf(w, "pod %s/%s is %s: %s: %s\n", p.Namespace, p.Name, word(p.State), p.Reason, cmp.Or(p.Detail, "no detail"))
	}
	if n := s.WrongPods - len(s.Wrong); n > 0 {
		fmt.Fprintf(w, "and %s\n", many(n, "more pod", "more pods"))
	}
	for _, text := range s.Next {
		fmt.Fprintf(w, "next: %s\n", text)
	}
	return nil
}

// many is a number with the words for one or for several.
func many(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + several
}

// word is a state as the table's columns have it.
func word(c agentapi.Condition) string {
	if c == agentapi.Failed {
		return "bypassing"
	}
	return string(c)
}

func (n *counts) columns() string {
	if n == nil {
		return "-\t-\t-\t-\t-"
	}
	return fmt.Sprintf("%d\t%d\t%d\t%d\t%d", n.Captured, n.Outside, n.Waiting, n.Drifted, n.Bypassing)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
