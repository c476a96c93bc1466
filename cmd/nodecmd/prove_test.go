//go:build linux

package nodecmd

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/proof"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestProve: a pod of the kubectl plugin's test says what is in force, family by family, and a connection from outside is one that came from
// there. Without the rules each of them is missing; of a pod of no mesh nothing is tried.
func TestProve(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	ns, node := netnstest.New(t), netnstest.New(t)
	require.NoError(t, ns.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "pod0", PeerNamespace: netlink.NsFd(node.Fd())}); err != nil {
			return err
		}
		return up("eth0", "10.88.0.2/24", "10.88.0.1")
	}))
	require.NoError(t, node.Do(func() error { return up("pod0", "10.88.0.1/24", "") }))

	q := proof.Question{Dialect: "istio", Namespace: &corev1.Namespace{}, Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"sidecar.istio.io/status": `{"containers":["istio-proxy"]}`}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "istio-proxy"}}},
	}}
	message := filepath.Join(t.TempDir(), "message")
	prove := func(more ...string) proof.Answer {
		t.Helper()
		text, err := json.Marshal(q)
		require.NoError(t, err)
		var out, errs bytes.Buffer
		require.NoError(t, ns.Do(func() error {
			require.Zero(t, Program{Stdout: &out, Stderr: &errs}.Main(t.Context(), append([]string{"prove", "--message", message, "--question", string(text)}, more...)), "%s", &errs)
			return nil
		}))
		written, err := os.ReadFile(message)
		require.NoError(t, err)
		assert.Equal(t, out.String(), string(written)+"\n", "the log has it too")
		a, err := proof.Parse(string(written))
		require.NoError(t, err)
		return a
	}
	trials := func(a proof.Answer) (found map[string]bool) {
		assert.Empty(t, a.Error)
		found = map[string]bool{}
		for _, trial := range a.Trials {
			found[trial.Family+" "+trial.What] = trial.Works
			assert.NotEmpty(t, trial.Detail)
		}
		return found
	}
	assert.Equal(t, map[string]bool{"IPv4 inbound": false, "IPv4 outbound": false, " inbound from outside": false}, trials(prove("--outside=100ms")))

	plan, err := dialect.SetOf(builtin.All()...).Plan(dialect.Subject{Pod: q.Pod, Addrs: []netip.Addr{netip.MustParseAddr("10.88.0.2")}})
	require.NoError(t, err)
	rules, err := plan.Redirect.Ruleset()
	require.NoError(t, err)
	backend, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendNftables})
	require.NoError(t, err)
	_, err = backend.Apply(t.Context(), rules)
	require.NoError(t, err)
	assert.Equal(t, map[string]bool{"IPv4 inbound": true, "IPv4 outbound": true}, trials(prove()))

	ends := make(chan struct{})
	kubelet := make(chan struct{})
	go func() { // as the kubelet tries a port, until it is done
		defer close(kubelet)
		for {
			select {
			case <-ends:
				return
			default:
			}
			_ = node.Do(func() error {
				conn, err := net.DialTimeout("tcp4", "10.88.0.2:15002", netnstest.Patience)
				if err == nil {
					_ = conn.Close()
				}
				return err
			})
		}
	}()
	assert.Equal(t, map[string]bool{"IPv4 inbound": true, "IPv4 outbound": true, "IPv4 inbound from outside": true}, trials(prove("--outside=1m")))
	close(ends)
	<-kubelet

	q.Dialect = "kuma"
	assert.Equal(t, proof.Answer{Trials: []proof.Trial{}, Error: "the pod is none of kuma: selected"}, prove())
	code, _, errs := run(t, nil, "prove", "--question", "x")
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "--question: ")
}

// up sets up lo and a link with an address, and a way on if there is one.
func up(name, address, gateway string) error {
	for _, name := range []string{"lo", name} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil || gateway == "" {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gateway)})
}
