package migrate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestDouble: the rules of one program may be in several tables, and rules that send nothing to a proxy are nobody's capture.
func TestDouble(t *testing.T) {
	t.Parallel()
	ours := []attachment.Record{{Selected: true}}
	native := func(table, rule string, mine bool) ruleset.LiveRule {
		action := ruleset.ActionRedirect
		switch word, _, _ := strings.Cut(rule, " "); word {
		case "tproxy":
			action = ruleset.ActionTProxy
		case "dnat":
			action = ruleset.ActionDNAT
		case "tcp":
			action = ruleset.ActionDrop
		}
		return ruleset.LiveRule{Backend: ruleset.BackendNftables, Table: table, Chain: "c", Position: 1, Text: rule, Action: action.String(), Ours: mine}
	}
	iptables := readChain(t, "-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001", ruleset.BackendIptablesNFT, true)[0]
	m := move{cluster: &cluster{Cluster: &kubectl.Cluster{Identity: own}}}
	m.Dialects = builtin.All()
	for name, tc := range map[string]struct {
		pod         agentapi.Pod
		cause, rule string
	}{
		"nothing":              {agentapi.Pod{}, "", ""},
		"one, in two tables":   {agentapi.Pod{Live: []ruleset.LiveRule{native("inet istio-proxy-nat", "redirect to :1", false), native("inet istio-proxy-mangle", "tproxy to :1", false)}}, "", ""},
		"one, in two families": {agentapi.Pod{Live: []ruleset.LiveRule{native("ip peer", "redirect to :1", false), native("ip6 peer", "redirect to :1", false)}}, "", ""},
		"ours and a firewall":  {agentapi.Pod{Records: ours, Live: []ruleset.LiveRule{iptables, native("inet guard", "tcp dport 22 drop", false)}}, "", ""},
		"ours that lacks a rule": {agentapi.Pod{
			Records: ours, Live: []ruleset.LiveRule{iptables}, Differences: []ruleset.Difference{{Kind: ruleset.KindMissing, Family: ruleset.IPv4, Table: "nat", Chain: "ISTIO_OUTPUT", Position: 3, Rule: "-j RETURN"}},
		}, "", ""},
		"two tables": {agentapi.Pod{Live: []ruleset.LiveRule{native("inet istio", "redirect to :1", true), native("inet istio-proxy-nat", "redirect to :1", false)}},
			"it has rules of two programs: in nftables, table istio and in nftables, tables istio-proxy-*", ""},
		"iptables and nftables": {agentapi.Pod{Live: []ruleset.LiveRule{iptables, native("inet peer", "redirect to :1", false)}},
			"it has rules of two programs: in iptables-nft and in nftables, table peer", ""},
		"ours and another's": {agentapi.Pod{Records: ours, Live: []ruleset.LiveRule{native("inet peer", "dnat ip to 10.0.0.1", false)}},
			"our plugin has captured it, and another program redirects too", "nftables, table inet peer, chain c: dnat ip to 10.0.0.1"},
	} {
		cause, rule := m.double(tc.pod)
		assert.Equal(t, [2]string{tc.cause, tc.rule}, [2]string{cause, rule}, name)
	}
}
