package compare_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// recorded are the rules of all recorded pods that are accepted.
func recorded(t *testing.T) map[string]ruleset.Ruleset {
	t.Helper()
	all := map[string]ruleset.Ruleset{}
	add := func(name string, c dialecttest.Case, d dialect.Dialect) {
		if rs, _, err := c.Rules(d); err == nil && !c.Refused {
			all[name] = rs
		}
	}
	for dir, d := range map[string]dialect.Dialect{"fates": istio.New(), "fates/linkerd": linkerd.New(), "fates/consul": consul.New()} {
		for name, c := range dialecttest.Recorded(t, filepath.Join("../../testdata", dir)) {
			add(dir+"/"+name, c, d)
		}
	}
	kumas, err := filepath.Glob("../../testdata/kuma/*.json")
	require.NoError(t, err)
	for _, file := range kumas {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		c := dialecttest.Case{Pod: &corev1.Pod{}, Namespace: &corev1.Namespace{}}
		require.NoError(t, json.Unmarshal(b, c.Pod))
		add(filepath.Base(file), c, kuma.New())
	}
	require.Greater(t, len(all), 30)
	return all
}

// list is what nft prints of the rules that are in force: the text without the lines that replace an older table.
func list(rs ruleset.Ruleset) string {
	lines := strings.SplitAfterN(nft.Text(rs), "\n", 3)
	text, _, _ := strings.Cut(lines[len(lines)-1], "\n# ")
	return strings.TrimSuffix(text, "\n") + "\n"
}

// again makes the read rules ours, whose text then has to be the same, rule for rule and set for set.
func again(t *testing.T, rs ruleset.Ruleset, text string) {
	t.Helper()
	read, err := parse(text, rs)
	require.NoError(t, err, text)
	for _, p := range []*ruleset.FamilyRuleset{read.IPv4, read.IPv6} {
		p.Owner = rs.Owner()
	}
	if rs.IPv6 == nil && read.IPv6.NumRules() == 0 {
		read.IPv6 = nil
	}
	assert.Equal(t, text, list(read))
}

// TestNativeReadsBack: what the renderer writes for a pod is read back as the same rules.
func TestNativeReadsBack(t *testing.T) {
	for name, rs := range recorded(t) {
		t.Run(name, func(t *testing.T) { again(t, rs, list(rs)) })
	}
}

// native is a program that another mesh has written to nftables directly.
const native = `table inet istio-proxy-nat { # handle 3
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		meta l4proto tcp counter packets 12 bytes 720 jump istio-inbound
	}
	chain output {
		type nat hook output priority dstnat; policy accept;
		counter packets 3 bytes 180 jump istio-output
	}
	chain istio-inbound {
		tcp dport 15008 counter packets 0 bytes 0 return
		tcp dport { 15020, 15021, 15090 } counter packets 0 bytes 0 return
		meta l4proto tcp counter packets 0 bytes 0 jump istio-in-redirect
	}
	chain istio-redirect {
		meta l4proto tcp counter packets 0 bytes 0 redirect to :15001
	}
	chain istio-in-redirect {
		meta l4proto tcp counter packets 0 bytes 0 redirect to :15006
	}
	chain istio-output {
		meta l4proto { tcp, udp } th dport 15020 counter packets 0 bytes 0 return
		ip saddr 127.0.0.6 oifname "lo" counter packets 0 bytes 0 return
		ip6 saddr ::6 oifname "lo" counter packets 0 bytes 0 return
		oifname "lo" ip daddr != 127.0.0.1 tcp dport != 15008 meta skuid 1337 counter packets 0 bytes 0 jump istio-in-redirect comment "a # {call} to itself"
		oifname "lo" ip6 daddr != ::1 tcp dport != 15008 skuid 1337 counter packets 0 bytes 0 jump istio-in-redirect
		oif "lo" meta skuid != 1337 counter packets 0 bytes 0 return
		meta skuid 1337 counter packets 0 bytes 0 return
		oifname "lo" ip daddr != 127.0.0.1 tcp dport != 15008 meta skgid 1337 counter packets 0 bytes 0 jump istio-in-redirect
		oifname "lo" ip6 daddr != ::1 tcp dport != 15008 meta skgid 1337 counter packets 0 bytes 0 jump istio-in-redirect
		oifname "lo" meta skgid != 1337 counter packets 0 bytes 0 return
		meta skgid 1337 counter packets 0 bytes 0 return
		ip daddr 127.0.0.1 counter packets 0 bytes 0 return
		ip6 daddr ::1 counter packets 0 bytes 0 return
		counter packets 0 bytes 0 jump istio-redirect
	}
}
table inet istio-proxy-mangle {
	chain prerouting {
		type filter hook prerouting priority mangle; policy accept;
	}
}
table ip asleep {
	flags dormant
	chain c {
		type nat hook output priority -100; policy drop;
	}
}
`

// istioRules are ours for a pod of the same mesh.
func istioRules() ruleset.Ruleset {
	r := istio.DefaultRedirect()
	r.IPv6 = redirect.FamilyCapture
	r.Outbound.ExcludePorts = redirect.Ports(15020)
	r.Inbound.ExcludePorts = redirect.Ports(15020, 15021, 15090)
	return r.MustRuleset()
}

func TestNativePeer(t *testing.T) {
	read, err := parse(native, istioRules())
	require.NoError(t, err)
	report := run(t, read, istioRules())
	assert.Empty(t, report.Differences)
	assert.Greater(t, report.Packets, 500)

	for from, to := range map[string]string{
		"tcp dport 15008 counter packets 0 bytes 0 return": "tcp dport 15009 return",
		"15020, 15021, 15090":                              "15020-15021, 15090, 8080",
		"127.0.0.6":                                        "127.0.0.7",
		"redirect to :15001":                               "redirect to :15002",
		"th dport 15020":                                   "th dport 15019",
		`oif "lo" meta skuid`:                              `oifname != "lo" meta skuid`,
	} {
		require.Contains(t, native, from)
		read, err := parse(strings.Replace(native, from, to, 1), istioRules())
		require.NoError(t, err, to)
		assert.NotEmpty(t, run(t, read, istioRules()).Differences, to)
	}
}

// TestNativeForeign: nothing is guessed, and each rule is named with what is not understood of it.
func TestNativeForeign(t *testing.T) {
	table := func(chain string) string {
		return "table inet x {\n\tset few {\n\t\ttype inet_service\n\t}\n" + chain + "\n}\n"
	}
	in := func(rule string) string {
		return table("chain output {\ntype nat hook output priority -100; policy accept;\n" + rule + "\n}\n")
	}
	for text, want := range map[string]string{
		in("tcp dport 80 masquerade"):                    `tcp dport 80 masquerade ("masquerade": not understood)`,
		in("limit rate 5/second accept"):                 "limit",
		in("ip daddr 10.0.0.1-10.0.0.9 return"):          `"10.0.0.1-10.0.0.9" is no address`,
		in("ip daddr != { 10.0.0.1, 10.0.0.2 } return"):  "several addresses negated",
		in("tcp dport @unknown return"):                  "the elements of set unknown are not known",
		in("tcp dport @few return"):                      "an empty set",
		in("tcp dport ssh return"):                       `"ssh" is no number`,
		in("tcp dport > 80 return"):                      "not understood",
		in("th dport 80 return"):                         "not understood",
		in("udp dport 53 tcp dport 53 return"):           "not understood",
		in(`oif "eth0" return`):                          "not understood",
		in(`iifname . oifname { "lo" . "eth0" } return`): "not understood",
		in(`iifname "eth+" return`):                      "not understood", // a whole name, which iptables could not say
		in(`iifname "*" return`):                         "not understood",
		in(`oifname { "lo" . "eth0" } return`):           "not understood",
		in("ip saddr { " + addresses(4000) + " } ip daddr { " + addresses(4000) + " } return"):                                  "more than 4096 rules",
		in(strings.Repeat("ip saddr { "+addresses(4000)+" } return\n", 17)):                                                     "the rules are more than 65536 without their sets",
		table("chain POSTROUTING { accept; }\nchain o { type nat hook output priority 0; jump POSTROUTING; }"):                  "name of a built-in one",
		"table netdev x {\n\tchain i {\n\t\ttype filter hook ingress devices = { \"eth0\", \"eth1\" } priority 0; drop\n\t}\n}": "family netdev",
		in("meta skuid root return"):                                              `"root" is no number`,
		in("goto other"):                                                          `"goto"`,
		in("jump nowhere"):                                                        "there is no such chain",
		in("redirect to :80 persistent"):                                          "not understood",
		in("redirect to :80-90"):                                                  "is no port",
		in("ct state != new return"):                                              "not understood",
		in("meta mark set 1 meta mark 1 return"):                                  "it matches after it has acted",
		in("meta mark 1 meta mark set 2 return"):                                  "it acts again",
		in("ip daddr vmap { 10.0.0.1 : accept }"):                                 "\"vmap\" is no address",
		in("xt match \"owner\" xt target \"REDIRECT\""):                           `"xt"`,
		in("tproxy ip to :1 meta mark set 1"):                                     "without accept",
		in("tcp dport { " + many(5000) + " } log accept"):                         "",
		in("ip daddr { " + addresses(4097) + " } accept"):                         "more than 4096 rules",
		table("chain o { type nat hook output priority 0; policy drop; }"):        "drops by its policy",
		table("chain o { type filter hook prerouting priority filter; accept; }"): "priority 0 is that of no table",
		table("chain o { type nat hook output priority 0; accept; }\nchain p { type nat hook output priority 1; accept; }"): "not the only one",
		table("chain o { type filter hook output priority mangle; meta mark set 5; }"):                                      "changes no route",
		"table netdev x {\n\tchain i {\n\t\ttype filter hook ingress device \"eth0\" priority 0; drop\n\t}\n}":              "family netdev",
	} {
		_, err := parse(text, ruleset.Ruleset{})
		if want == "" {
			assert.NoError(t, err)
			continue
		}
		var foreign *ruleset.ForeignError
		if assert.ErrorAs(t, err, &foreign, text) {
			assert.ErrorContains(t, err, want)
		}
	}
	for text, want := range map[string]string{
		"chain x {}": "line 1", "table inet x {": "not closed", "table inet x {\nchain y {\ntype nat hook output priority x\n}\n}": `"x" is no priority`,
		"table inet\n": "is no table", "hello": "outside a table",
	} {
		_, err := parse(text, ruleset.Ruleset{})
		assert.ErrorContains(t, err, want, text)
	}
	_, err := parse("*nat\nCOMMIT\n"+in("accept"), ruleset.Ruleset{})
	assert.ErrorContains(t, err, "of iptables and of nftables")
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d, ", 2*i+1)
	}
	return strings.TrimSuffix(b.String(), ", ")
}

func addresses(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "10.0.%d.%d, ", i/256, i%256)
	}
	return strings.TrimSuffix(b.String(), ", ")
}
