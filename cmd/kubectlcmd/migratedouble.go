package kubectlcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// double names two programs that have both written a pod's rules, with a rule of the second if one tells; nothing for a pod that has
// the rules of one.
func (m *move) double(p agentapi.Pod) (cause, rule string) {
	var places, meshes []string // each where rules of one program are
	note := func(list *[]string, s string) {
		if !slices.Contains(*list, s) {
			*list = append(*list, s)
		}
	}
	ours := slices.ContainsFunc(p.Records, func(r attachment.Record) bool { return r.Selected })
	foreign := ""
	for i := range p.Live {
		r := &p.Live[i]
		if r.Captures() && !r.Ours && foreign == "" {
			foreign = fmt.Sprintf("%s, table %s, chain %s: %s", r.Backend, r.Table, r.Chain, r.Text)
		}
		if r.Backend != ruleset.BackendNftables {
			note(&places, string(r.Backend))
		} else if r.Captures() {
			note(&places, "nftables, "+program(r.Table))
		}
		for _, d := range m.Dialects {
			if o := d.Names.Owner(); r.Backend != ruleset.BackendNftables && o.Prefix != "" && o.OwnsChain(r.Chain) {
				note(&meshes, "chains "+o.Prefix+"*")
			}
		}
	}
	added := slices.IndexFunc(p.Differences, func(d ruleset.Difference) bool { return d.Kind == ruleset.Unexpected })
	switch {
	case len(places) > 1:
		return "it has rules of two programs: in " + strings.Join(places, " and in "), ""
	case len(meshes) > 1:
		return "it has rules of two meshes: " + strings.Join(meshes, " and "), ""
	case ours && foreign != "":
		return "our plugin has captured it, and another program redirects too", foreign
	case ours && added >= 0:
		return "our plugin has captured it, and another program has written into the same chains", p.Differences[added].String()
	}
	return "", ""
}

// program names the program that has written to a table of nftables: of one for each family or each of iptables' tables it is what
// their names have in common.
func program(table string) string {
	_, name, _ := strings.Cut(table, " ")
	for _, t := range ruleset.Tables {
		if of, ok := strings.CutSuffix(name, "-"+t.String()); ok {
			return "tables " + of + "-*"
		}
	}
	return "table " + name
}
