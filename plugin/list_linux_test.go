package plugin_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// meshes are meshes whose recorded pods share a node, and how the proxies of the recordings listen.
var meshes = map[string]struct {
	dir, pod, prefix string
	proxy            netnstest.Options
}{
	"istio":   {fates, "out-exclude-ports", "ISTIO_", netnstest.Options{}},
	"linkerd": {fates + "/linkerd", "out-skip", "PROXY_INIT_", netnstest.Options{ProxyUID: 2102, ProxyGID: 2102, ProxyTCP: []uint16{4143, 4140, 4190, 4191, 15008, 15020}, ProxyUDP: []uint16{}}},
	"consul":  {fates + "/consul", "", "CONSUL_PROXY_", netnstest.Options{ProxyUID: consul.ProxyUID, ProxyGID: consul.ProxyUID, ProxyTCP: []uint16{20000, 15001, 8600, 15008, 15020}, ProxyUDP: []uint16{8600}}},
}

// TestMeshesSideBySide runs the built program with one configuration for pods of several meshes. The packets of each end where
// its own mesh's recordings say, it has the chains of its own mesh alone, and CHECK and DEL are right. A pod of none has none.
func TestMeshesSideBySide(t *testing.T) {
	orders := map[string][][]string{ // the backend's; every order is tried, and every backend
		"iptables-nft":    {{"istio", "linkerd"}, {"ambient", "istio", "linkerd", "consul"}},
		"iptables-legacy": {{"linkerd", "istio"}, {"consul", "ambient", "linkerd", "istio"}},
		"nftables":        {{"consul", "istio", "linkerd"}, {"linkerd", "consul", "istio", "ambient"}},
	}
	for backend, lists := range orders {
		for _, list := range lists {
			t.Run(backend+"/"+strings.Join(list, ","), func(t *testing.T) {
				n := newNode(t, backend)
				for mesh, m := range meshes {
					if slices.Contains(list, mesh) {
						t.Run(mesh, func(t *testing.T) { n.sideBySide(t, list, mesh, recorded(t, m.dir, m.pod)) })
					}
				}
				none := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "none", UID: "none"}}
				none.Spec.Containers = []corev1.Container{{Name: "app"}}
				n.server.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
				ns := netnstest.New(t)
				a := n.attach(none, ns)
				a.Config = set(a.Config.(object), "dialect", list)
				before := rules(t, ns)
				add(t, a)
				assert.Equal(t, before, rules(t, ns))
				assert.Zero(t, a.Run(t, "CHECK").Exit)
			})
		}
	}
}

// recorded returns a recording; without a name the first that is accepted.
func recorded(t *testing.T, dir, name string) dialecttest.Case {
	all := dialecttest.Recorded(t, dir)
	var names []string
	for n, c := range all {
		if !c.Refused {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	if name == "" {
		name = names[0]
	}
	require.Contains(t, names, name)
	return all[name]
}

func (n *node) sideBySide(t *testing.T, list []string, mesh string, c dialecttest.Case) {
	n.server.SetNamespace(c.Namespace)
	w := netnstest.NewWorld(t, meshes[mesh].proxy)
	a := n.attach(c.Pod, w.Pod)
	a.ContainerID = mesh
	a.Config = set(a.Config.(object), "dialect", list)
	add(t, a)
	probes := make([]netnstest.Probe, 0, len(c.Fates))
	for probe := range c.Fates {
		p, err := netnstest.ParseProbe(probe)
		require.NoError(t, err)
		probes = append(probes, p)
	}
	got := w.Run(probes)
	for probe, fate := range c.Fates {
		assert.Equal(t, fate, got[probe], probe)
	}
	if n.backend != "nftables" {
		live := rules(t, w.Pod)
		for other, m := range meshes {
			assert.Equal(t, other == mesh, strings.Contains(live, m.prefix), "chains of %s", other)
		}
	}
	id := attachment.ID{Network: "k8s", ContainerID: mesh, IfName: "eth0"}
	record, err := attachment.Open(n.runDir).Read(id)
	require.NoError(t, err)
	assert.Equal(t, mesh, record.Dialect)

	add(t, a) // again
	assert.Zero(t, a.Run(t, "CHECK").Exit)
	a.Config = set(a.Config.(object), "dialect", slices.DeleteFunc(slices.Clone(list), func(name string) bool { return name == mesh }))
	assert.Zero(t, a.Run(t, "CHECK").Exit, "CHECK goes by what ADD did")
	assert.Zero(t, a.Run(t, "DEL").Exit)
	_, err = attachment.Open(n.runDir).Read(id)
	require.Error(t, err)
}

// TestMovedFromOneMeshToAnother: a workload whose pods come back with another mesh's proxy is captured by that mesh's rules, and
// the pods that still run keep theirs.
func TestMovedFromOneMeshToAnother(t *testing.T) {
	n := newNode(t, "iptables-nft")
	list := []string{"istio", "linkerd"}
	old, moved := recorded(t, meshes["istio"].dir, meshes["istio"].pod), recorded(t, meshes["linkerd"].dir, meshes["linkerd"].pod)
	moved.Pod.Namespace, moved.Pod.Name, moved.Namespace.Name = old.Pod.Namespace, old.Pod.Name, old.Pod.Namespace
	old.Pod.UID, moved.Pod.UID = types.UID("before"), types.UID("after")
	n.server.SetNamespace(moved.Namespace)
	before, after := netnstest.New(t), netnstest.New(t)
	a := n.attach(old.Pod, before)
	a.ContainerID, a.Config = "before", set(a.Config.(object), "dialect", list)
	add(t, a)
	b := n.attach(moved.Pod, after)
	b.ContainerID, b.Config = "after", set(b.Config.(object), "dialect", list)
	add(t, b)
	assert.Contains(t, rules(t, after), "PROXY_INIT_")
	assert.NotContains(t, rules(t, after), "ISTIO_")
	assert.Contains(t, rules(t, before), "ISTIO_")
	for range 2 {
		assert.Zero(t, a.Run(t, "CHECK").Exit)
		assert.Zero(t, b.Run(t, "CHECK").Exit)
	}
	assert.Zero(t, a.Run(t, "DEL").Exit)
	assert.Zero(t, b.Run(t, "CHECK").Exit)
	a.Config = set(a.Config.(object), "add_deadline", "1s")
	out := a.Run(t, "ADD") // an old sandbox is not given the new pod's rules
	code, message := out.Failure()
	assert.Equal(t, 11, code, message)
}
