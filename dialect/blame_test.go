package dialect_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/redirect"
)

// list joins n elements.
func list(n int, separator string, element func(i int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = element(i)
	}
	return strings.Join(all, separator)
}

func cidr(i int) string  { return fmt.Sprintf("%d.%d.%d.0/24", 10+i>>16, i>>8&255, i&255) }
func iface(i int) string { return fmt.Sprintf("v%d", i) }
func user(i int) string  { return fmt.Sprint(2000 + 2*i) }

// TestTooManyRulesNamesTheAnnotations: whatever the dialect, who wrote the
// annotations that multiply reads their names, and the bound.
func TestTooManyRulesNamesTheAnnotations(t *testing.T) {
	cases := map[string]struct {
		mesh        dialect.Dialect
		annotations map[string]string
		namespace   map[string]string
		blamed      []string
	}{
		"istio, a product": {istio.New(), map[string]string{
			"istio.io/reroute-virtual-interfaces": list(1000, ",", iface), "traffic.sidecar.istio.io/includeOutboundIPRanges": list(1000, ",", cidr),
		}, nil, []string{"annotation " + "istio.io/reroute-virtual-interfaces", "annotation " + "traffic.sidecar.istio.io/includeOutboundIPRanges"}},
		"istio, by the deprecated name": {istio.New(), map[string]string{
			"traffic.sidecar.istio.io/kubevirtInterfaces": list(1000, ",", iface), "traffic.sidecar.istio.io/includeOutboundIPRanges": list(1000, ",", cidr),
		}, nil, []string{"annotation " + "traffic.sidecar.istio.io/kubevirtInterfaces"}},
		"istio, one long list": {istio.New(), map[string]string{"traffic.sidecar.istio.io/excludeOutboundIPRanges": list(110_000, ",", cidr)}, nil,
			[]string{"annotation " + "traffic.sidecar.istio.io/excludeOutboundIPRanges"}},
		"linkerd": {linkerd.New(), nil, map[string]string{linkerd.SkipSubnets: list(110_000, ", ", cidr)},
			[]string{"namespace annotation " + linkerd.SkipSubnets}},
		"kuma, users": {kuma.New(), map[string]string{
			"traffic.kuma.io/exclude-outbound-ports-for-uids": list(4000, ";", func(i int) string { return "tcp,udp,tcp,udp:53:" + user(i) }),
		}, nil, []string{"annotation " + "traffic.kuma.io/exclude-outbound-ports-for-uids"}},
		"kuma, many users": {kuma.New(), map[string]string{"traffic.kuma.io/exclude-outbound-ports-for-uids": list(40_000, ";", user)}, nil,
			[]string{"annotation " + "traffic.kuma.io/exclude-outbound-ports-for-uids"}},
		"kuma, addresses": {kuma.New(), map[string]string{"traffic.kuma.io/exclude-outbound-ips": list(110_000, ",", cidr)}, nil,
			[]string{"annotation " + "traffic.kuma.io/exclude-outbound-ips"}},
		"consul": {consul.New(), map[string]string{
			consul.DualStack:             "true",
			consul.RedirectTrafficConfig: `{"ProxyUserID": "5995", "ProxyInboundPort": 20000, "ExcludeUIDs": ["` + list(8000, `","`, user) + `"]}`,
		}, nil, []string{"annotation " + consul.RedirectTrafficConfig + ".ExcludeUIDs"}},
		"ambient": {ambient.New(ambient.Options{}), map[string]string{"istio.io/reroute-virtual-interfaces": list(5000, ",", iface)}, nil,
			[]string{"annotation " + "istio.io/reroute-virtual-interfaces"}},
	}
	for name, c := range cases {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: c.annotations}}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: c.namespace}}
		_, err := c.mesh.Redirect(pod, namespace, v4)
		require.Error(t, err, name)
		assert.Contains(t, err.Error(), "10000", "%s: the bound", name)
		for _, key := range c.blamed {
			assert.Contains(t, err.Error(), key, name)
		}
		assert.Less(t, len(err.Error()), 2000, name)
	}
}

func TestBlame(t *testing.T) {
	b := dialect.Reading{Origins: []redirect.Origin{
		{Field: "virtualNetworks", Source: redirect.FromAnnotation, Key: "mesh/nets"},
		{Field: "outbound.exclude", Source: redirect.FromAnnotation, Key: "mesh/users"},
		{Field: "outbound.exclude", Source: redirect.FromNamespace, Key: "mesh/ips"},
		{Field: "outbound.ports", Source: redirect.FromDefault},
		{Field: "", Source: redirect.FromAnnotation, Key: "mesh/nothing"},
	}}
	nets, ports := &redirect.FieldError{Field: "virtualNetworks[3].local", Reason: "is needed"}, &redirect.FieldError{Field: "outbound.ports", Reason: "no"}
	limit := &redirect.LimitError{Rules: 20_000, Products: []redirect.Product{{Fields: []string{"outbound.exclude"}, Rules: 19_000}}}
	err := b.Blame(errors.Join(nets, ports, limit))
	assert.EqualError(t, err, "annotation mesh/nets: redirect: virtualNetworks[3].local: is needed\n"+
		"redirect: outbound.ports: no\n"+
		"annotation mesh/users, namespace annotation mesh/ips: redirect: 20000 rules would be made, and 10000 are the most (outbound.exclude: 19000)")
	var got *redirect.LimitError
	require.ErrorAs(t, err, &got)
	assert.Same(t, limit, got)
	assert.NoError(t, b.Blame(nil))
}
