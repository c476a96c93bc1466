//go:build linux

package plugin_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/nfttest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// warned returns the warnings of the last decision's record.
func (n *node) warned(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.runDir, "plugin.log"))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var record struct {
		Msg      string
		Warnings []string
	}
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &record))
	require.Equal(t, "decision", record.Msg)
	return strings.Join(record.Warnings, "\n")
}

// TestNamespacesThatAreNotAsUsual: the built program starts a pod of both families in a
// namespace whose IPv6 is off, whose lo is down, or whose chains have names that no program
// would give them; it captures what there is, and says what there is not.
func TestNamespacesThatAreNotAsUsual(t *testing.T) {
	kinds := map[string]func(t *testing.T, ns *netnsexec.NetNS){
		"IPv6 off":       func(t *testing.T, ns *netnsexec.NetNS) { setSysctl(t, ns, "ipv6/conf/all/disable_ipv6", "1") },
		"IPv6 off on lo": func(t *testing.T, ns *netnsexec.NetNS) { setSysctl(t, ns, "ipv6/conf/lo/disable_ipv6", "1") },
		"lo down": func(t *testing.T, ns *netnsexec.NetNS) {
			require.NoError(t, ns.Run(exec.CommandContext(t.Context(), "ip", "link", "set", "lo", "down")))
		},
		"chain names": nameChains,
	}
	for _, backend := range append([]string{"nftables"}, variants...) {
		for kind, make := range kinds {
			for _, pod := range []string{"fam-dual", "tproxy-dual"} {
				t.Run(backend+"/"+kind+"/"+pod, func(t *testing.T) {
					t.Parallel()
					n := newNode(t, backend)
					ns := netnstest.New(t)
					make(t, ns)
					a := n.attach(caseOf(t, pod), ns)
					add(t, a)
					if strings.HasPrefix(kind, "IPv6") {
						assert.Contains(t, n.warned(t), "IPv6 is switched off on lo")
					} else {
						assert.NotContains(t, n.warned(t), "switched off")
					}
					out := a.Run(t, "CHECK")
					assert.Zero(t, out.Exit, string(out.Stdout))
					once := everyRule(t, ns)
					if backend != "nftables" { // where one rule is for both
						assert.Contains(t, once, "ip6"+strings.TrimPrefix(backend, "ip")+"-save -A ISTIO_IN_REDIRECT", "IPv6 too")
					}
					assert.Contains(t, once, "15006")
					add(t, a)
					assert.Equal(t, once, everyRule(t, ns))
					out = a.Run(t, "CHECK")
					assert.Zero(t, out.Exit, string(out.Stdout))
				})
			}
		}
	}
}

func setSysctl(t testing.TB, ns *netnsexec.NetNS, name, value string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }))
}

// nameChains makes chains in iptables' tables, with a rule each.
func nameChains(t *testing.T, ns *netnsexec.NetNS) {
	t.Helper()
	var chains []nfttest.Chain
	for _, f := range []uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		for _, table := range []string{"raw", "mangle", "nat", "filter"} {
			for _, name := range []string{"ISTIO_OUTPUT\tfoo", "ISTIO_INBOUND\t-j\tACCEPT", "ISTIO_REDIRECT x", "MESH\n-F", "ISTIO_\n-A OUTPUT -j DROP"} {
				chains = append(chains, nfttest.Chain{Family: f, Table: table, Name: name, Jumps: []string{""}})
			}
		}
	}
	require.NoError(t, nfttest.Add(ns, chains...))
}

// everyRule is rules, and those of nftables' own table.
func everyRule(t testing.TB, ns *netnsexec.NetNS) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nft", "-a", "list", "table", "inet", "istio")
	var out strings.Builder
	cmd.Stdout = &out
	_ = ns.Run(cmd) // fails where there is none
	return rules(t, ns) + out.String()
}
