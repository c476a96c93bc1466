package judge_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
)

func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u1", ResourceVersion: "1", Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.5"}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func sidecar(p *corev1.Pod) {
	p.Annotations[istio.StatusAnnotation] = "{}"
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "istio-proxy"})
}

func linkerds(p *corev1.Pod) {
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "linkerd-proxy"})
}

func refused(p *corev1.Pod) {
	p.Annotations["traffic.sidecar.istio.io/excludeInboundPorts"] = "no port"
}

func large(p *corev1.Pod) {
	p.Annotations["a"] = strings.Repeat("x", 256<<10)
	p.Spec.Containers = make([]corev1.Container, 1000)
}

func kept(p *corev1.Pod) *corev1.Pod { return podkeep.Keep([]dialect.Dialect{istio.New()}, p) }

func names(labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: labels}}
}

func TestPod(t *testing.T) {
	t.Parallel()
	plain, enabled := names(nil), names(map[string]string{ambient.DataplaneMode: "ambient"})
	forbidden := errors.New("forbidden")
	all := []dialect.Dialect{ambient.New(ambient.Options{}), istio.New(), linkerd.New()}
	panics := istio.New()
	panics.Policy.Decline = func(*corev1.Pod, *corev1.Container) (status.Code, string) { panic("boom") }
	for name, c := range map[string]struct {
		known      []dialect.Dialect
		configured string
		pod        *corev1.Pod
		namespace  *corev1.Namespace
		has, may   string // may: the sidecars' mesh that has it, or may have it
		others     []string
		err        string // why it is undecided
		refused    string
	}{
		"a sidecar's":                          {all, "istio", pod(sidecar), nil, "istio", "istio", nil, "", ""},
		"nobody's":                             {all, "istio", pod(), nil, "", "", nil, "", ""},
		"refused is had":                       {all, "istio", pod(sidecar, refused), nil, "istio", "istio", nil, "", "no port"},
		"of a mesh that is not configured":     {all, "istio", pod(linkerds), nil, "", "", []string{"linkerd"}, "", ""},
		"it would be, but for its namespace":   {all, "istio", pod(), enabled, "", "", nil, "", ""},
		"in the node's proxy":                  {all, "ambient,istio", pod(), enabled, "ambient", "", nil, "", ""},
		"not in the node's proxy":              {all, "ambient,istio", pod(), plain, "", "", nil, "", ""},
		"maybe in the node's proxy":            {all, "ambient,istio", pod(), nil, "ambient", "", nil, "its namespace is not known, so it cannot be told whether ambient selects it: forbidden", ""},
		"maybe, else a sidecar's":              {all, "ambient,linkerd", pod(linkerds), nil, "ambient", "linkerd", nil, "its namespace is not known", ""},
		"a sidecar's, before":                  {all, "istio,ambient", pod(sidecar), nil, "istio", "istio", nil, "", ""},
		"settings are inherited":               {all, "linkerd", pod(linkerds), plain, "linkerd", "linkerd", nil, "", ""},
		"what it inherits is not known":        {all, "linkerd", pod(linkerds), nil, "linkerd", "linkerd", nil, "", "what settings of linkerd it inherits: forbidden"},
		"a policy that panics":                 {[]dialect.Dialect{panics}, "istio", pod(sidecar), nil, "istio", "istio", nil, "its Policy.Decline panics", ""},
		"too large":                            {all, "istio", kept(pod(large)), nil, "", "istio", nil, "larger than the agent keeps", ""},
		"too large, and in the host's network": {all, "istio", kept(pod(large, func(p *corev1.Pod) { p.Spec.HostNetwork = true })), nil, "", "", nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			meshes, err := dialect.Configure(c.known, netconf.Config{Dialects: strings.Split(c.configured, ",")})
			require.NoError(t, err)
			var unknown error
			if c.namespace == nil {
				unknown = forbidden
			}
			j := judge.New(meshes).Pod(c.pod, c.namespace, unknown)
			assert.Equal(t, c.err != "", j.Undecided())
			if c.err != "" {
				require.ErrorContains(t, j.Err, c.err)
			}
			has := ""
			if j.Mesh != nil {
				has = j.Mesh.Name
			}
			assert.Equal(t, c.has, has)
			assert.Equal(t, c.has != "" && c.err == "", j.Selected())
			may := ""
			if d := j.May(func(d dialect.Dialect) bool { return d.NodeProxy == nil }); d != nil {
				may = d.Name
			}
			assert.Equal(t, c.may, may)
			assert.Equal(t, c.others, j.Others())

			p, err := j.Plan(judge.Addrs(c.pod), redirect.Kernel{})
			switch {
			case c.err != "":
				require.EqualError(t, err, j.Err.Error())
			case c.refused != "":
				require.ErrorContains(t, err, c.refused)
			default:
				require.NoError(t, err)
				want, err := meshes.Plan(dialect.Subject{Pod: c.pod, Namespace: c.namespace, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.5")}})
				require.NoError(t, err)
				assert.Equal(t, want, p)
			}
		})
	}
}

// TestOf: a judgement counts for one version of the pod and of what its namespace says, however often that is read.
func TestOf(t *testing.T) {
	t.Parallel()
	first, ns := pod(), names(map[string]string{"a": "b"})
	j := judge.New(dialect.SetOf(istio.New())).Pod(first, ns, nil)
	again := func(change func(*corev1.Pod)) *corev1.Pod { return pod(change) }
	assert.True(t, j.Of(first, ns))
	assert.True(t, j.Of(pod(), names(map[string]string{"a": "b"})))
	assert.False(t, j.Of(nil, ns))
	assert.False(t, j.Of(again(func(p *corev1.Pod) { p.ResourceVersion = "2" }), ns))
	assert.False(t, j.Of(again(func(p *corev1.Pod) { p.ResourceVersion = "" }), ns), "which version it is, is not known")
	assert.False(t, j.Of(again(func(p *corev1.Pod) { p.UID = types.UID("u2") }), ns))
	assert.False(t, j.Of(kept(pod(large)), ns), "of the same version less is kept")
	assert.False(t, j.Of(first, names(nil)))
	assert.False(t, j.Of(first, nil))
}
