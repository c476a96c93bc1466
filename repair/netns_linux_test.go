package repair_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// TestWhereRulesAreWritten: into the namespace that the runtime gave, also between two attempts of a pod's check, when none of its processes
// runs; never into one that a tenant, or the pod itself, has made to look like the pod's.
func TestWhereRulesAreWritten(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, podproctest.Cgroups)
	for name, c := range map[string]struct {
		recorded bool
		group    string // of the process that is elsewhere
		tenant   bool
		err      error
	}{
		"no process":                          {recorded: true},
		"a tenant's group, and a record":      {recorded: true, group: "meshcni-test-TENANT/kubepods/pod%s", tenant: true},
		"a tenant's group":                    {group: "meshcni-test-TENANT/kubepods/pod%s", tenant: true, err: repair.ErrNoProcess},
		"the pod's own process, and a record": {recorded: true, group: "kubepods/pod%s/5ad0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			uid := podproctest.NewUID()
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: types.UID(uid), Annotations: map[string]string{istio.StatusAnnotation: "{}"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}, {Name: "istio-proxy"}}},
				Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.1.5"}, {IP: "fd00:10:244::5"}}},
			}
			own, other := netnstest.NewWorld(t, netnstest.Options{}).Pod, netnstest.NewWorld(t, netnstest.Options{}).Pod
			if c.group != "" {
				group := podproctest.Plain(strings.ReplaceAll(c.group, "TENANT", uid), uid)
				podproctest.Start(t, other, group)
				if c.tenant {
					podproctest.Own(t, filepath.Dir(filepath.Dir(group)), group, 1000)
				}
			}
			records := attachment.Open(t.TempDir())
			if c.recorded {
				require.NoError(t, records.Write(attachment.Record{
					ID:    attachment.ID{Network: "k8s", ContainerID: "c1", IfName: "eth0"},
					NetNS: attachment.NetNS{Path: own.Path(), Dev: own.ID().Dev, Ino: own.ID().Ino},
					Pod:   status.ID{Namespace: "shop", Name: "web-0", UID: uid}, By: "ADD", Reason: "not-injected", Time: time.Now(),
				}))
			}
			m := &repair.InPlace{Meshes: dialect.SetOf(istio.New("kube-system")), Backend: ruleset.BackendNftables, Records: records}
			_, err := m.Apply(t.Context(), pod)
			for ns, want := range map[*netnsexec.NetNS]bool{own: c.err == nil, other: false} {
				rules, err := apply.Live(t.Context(), ns, apply.Options{Backend: ruleset.BackendNftables}, istio.New().Names.Owner().EmptyRuleset())
				require.NoError(t, err)
				assert.Equal(t, want, len(rules) > 0)
			}
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				require.ErrorContains(t, err, "not the kubelet's")
				return
			}
			require.NoError(t, err)
			diffs, err := m.Check(t.Context(), pod)
			require.NoError(t, err)
			assert.Empty(t, diffs)
			for _, line := range []string{"ip tuntap add tap0 mode tap", "tc qdisc add dev eth0 clsact", "tc filter add dev eth0 ingress protocol all u32 match u8 0 0 action mirred egress redirect dev tap0"} {
				words := strings.Fields(line)
				require.NoError(t, own.Run(exec.CommandContext(t.Context(), words[0], words[1:]...)), line)
			}
			_, err = m.Check(t.Context(), pod)
			var past *dialect.BypassError
			require.ErrorAs(t, err, &past, "the rules are there, and nothing comes to them")
			assert.Equal(t, "tap0, by tc", past.HandedTo)
		})
	}
}
