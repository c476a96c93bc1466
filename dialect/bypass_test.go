package dialect_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
)

// meshOf is a mesh of one name whose proxy is known as given.
func meshOf(proxy redirect.Proxy, own ...string) dialect.Dialect {
	r := redirect.Default()
	r.Proxy = proxy
	return dialect.Dialect{Name: "toy", Build: func(dialect.Input) (dialect.Reading, error) {
		return dialect.Reading{Redirect: r, ProxyContainers: own}, nil
	}}
}

func ptr[T any](v T) *T { return &v }

var always = corev1.ContainerRestartPolicyAlways

func TestContainersThatRunAsTheProxy(t *testing.T) {
	app := func(user, group *int64) []corev1.Container {
		return []corev1.Container{
			{Name: "proxy", SecurityContext: &corev1.SecurityContext{RunAsUser: ptr[int64](1337), RunAsGroup: ptr[int64](1337)}},
			{Name: "app", SecurityContext: &corev1.SecurityContext{RunAsUser: user, RunAsGroup: group}},
		}
	}
	pods := &corev1.PodSecurityContext{RunAsUser: ptr[int64](1337)}
	as := func(container, field string) dialect.Bypass {
		return dialect.Bypass{Code: dialect.BypassProxyID, Container: container, Field: field, ID: 1337}
	}
	inherited := as("app", "runAsUser")
	inherited.Inherited = true
	initial := as("app", "runAsUser")
	initial.Code = dialect.BypassInitID
	tests := []struct {
		name string
		spec corev1.PodSpec
		want []dialect.Bypass
	}{
		{"another user", corev1.PodSpec{Containers: app(ptr[int64](1000), ptr[int64](1000))}, nil},
		{"no word of it", corev1.PodSpec{Containers: app(nil, nil)}, nil},
		{"no securityContext", corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}, nil},
		{"the proxy's user", corev1.PodSpec{Containers: app(ptr[int64](1337), nil)}, []dialect.Bypass{as("app", "runAsUser")}},
		{"the proxy's group", corev1.PodSpec{Containers: app(nil, ptr[int64](1337))}, []dialect.Bypass{as("app", "runAsGroup")}},
		{"the pod's", corev1.PodSpec{Containers: app(nil, nil), SecurityContext: pods}, []dialect.Bypass{inherited}},
		{"its own hides the pod's", corev1.PodSpec{Containers: app(ptr[int64](1000), nil), SecurityContext: pods}, nil},
		{"an init container", corev1.PodSpec{InitContainers: app(ptr[int64](1337), nil)[1:]}, []dialect.Bypass{initial}},
		{"an init container before a native sidecar", corev1.PodSpec{InitContainers: []corev1.Container{
			app(ptr[int64](1337), nil)[1], {Name: "proxy", RestartPolicy: &always},
		}}, []dialect.Bypass{initial}},
		{"one after it", corev1.PodSpec{InitContainers: []corev1.Container{
			{Name: "proxy", RestartPolicy: &always}, app(ptr[int64](1337), nil)[1],
		}}, []dialect.Bypass{as("app", "runAsUser")}},
		{"a sidecar of its own", corev1.PodSpec{InitContainers: []corev1.Container{
			{Name: "logs", RestartPolicy: &always, SecurityContext: &corev1.SecurityContext{RunAsUser: ptr[int64](1337)}},
		}}, []dialect.Bypass{as("logs", "runAsUser")}},
		{"a name that begins like the proxy's", corev1.PodSpec{Containers: []corev1.Container{
			{Name: "proxy-x", SecurityContext: &corev1.SecurityContext{RunAsUser: ptr[int64](1337)}},
		}}, []dialect.Bypass{as("proxy-x", "runAsUser")}},
	}
	proxy := redirect.Default().Proxy
	proxy.GIDs = []uint32{1337}
	for _, tt := range tests {
		plan, err := meshOf(proxy, "proxy").Plan(dialect.Subject{Pod: &corev1.Pod{Spec: tt.spec}}, dialect.Options{})
		require.NoError(t, err, tt.name)
		assert.Equal(t, tt.want, plan.Bypasses, tt.name)
		_, err = meshOf(proxy, "proxy").Plan(dialect.Subject{Pod: &corev1.Pod{Spec: tt.spec}}, dialect.Options{RefuseProxyUID: true})
		refused := slices.ContainsFunc(tt.want, func(b dialect.Bypass) bool { return b.Code == dialect.BypassProxyID })
		assert.Equal(t, refused, errors.As(err, new(*dialect.BypassError)), tt.name)
	}
}

// TestContainersThatMaySetTheMark: what any runtime may grant counts.
func TestContainersThatMaySetTheMark(t *testing.T) {
	type sc = corev1.SecurityContext
	caps := func(add, drop []corev1.Capability) *sc {
		return &sc{Capabilities: &corev1.Capabilities{Add: add, Drop: drop}}
	}
	type names = []corev1.Capability
	nonRoot := func(s *sc, user *int64, escalate *bool) *sc {
		s.RunAsUser, s.AllowPrivilegeEscalation = user, escalate
		return s
	}
	tests := map[string]struct {
		sc    *sc
		pod   *corev1.PodSecurityContext
		field string // of the bypass; empty: there is none
		dflt  bool   // by the runtime's default
	}{
		"no word of it":                 {nil, nil, "capabilities", true},
		"empty":                         {caps(nil, nil), nil, "capabilities", true},
		"all dropped":                   {caps(nil, names{"ALL"}), nil, "", false},
		"all dropped, in small letters": {caps(nil, names{"all"}), nil, "", false},
		"dropped":                       {caps(nil, names{"NET_RAW"}), nil, "", false},
		"dropped, in small letters":     {caps(nil, names{"net_raw"}), nil, "", false},
		// containerd makes CAP_CAP_NET_RAW of it, which it does not find.
		"dropped by a name that some do not know": {caps(nil, names{"CAP_NET_RAW"}), nil, "capabilities", true},
		"another is dropped":                      {caps(nil, names{"CHOWN"}), nil, "capabilities", true},
		"all dropped, it is added":                {caps(names{"NET_RAW"}, names{"ALL"}), nil, "capabilities", false},
		"all dropped, it is added with a prefix":  {caps(names{"cap_net_raw"}, names{"ALL"}), nil, "capabilities", false},
		"all dropped, NET_ADMIN is added":         {caps(names{"NET_ADMIN"}, names{"ALL"}), nil, "capabilities", false},
		"NET_RAW dropped, NET_ADMIN added":        {caps(names{"NET_ADMIN"}, names{"NET_RAW"}), nil, "capabilities", false},
		"all dropped, another is added":           {caps(names{"NET_BIND_SERVICE"}, names{"ALL"}), nil, "", false},
		"all added":                               {caps(names{"ALL"}, nil), nil, "capabilities", false},
		"all added but NET_RAW":                   {caps(names{"ALL"}, names{"NET_RAW"}), nil, "capabilities", false},
		"all added but both":                      {caps(names{"all"}, names{"NET_RAW", "NET_ADMIN"}), nil, "", false},
		"added and dropped":                       {caps(names{"NET_RAW"}, names{"NET_RAW"}), nil, "capabilities", false},
		"privileged":                              {&sc{Privileged: ptr(true), Capabilities: &corev1.Capabilities{Drop: names{"ALL"}}}, nil, "privileged", false},
		"not privileged":                          {&sc{Privileged: ptr(false)}, nil, "capabilities", true},
		"a user, no escalation":                   {nonRoot(&sc{}, ptr[int64](1000), ptr(false)), nil, "", false},
		"a user, who may start ping":              {nonRoot(&sc{}, ptr[int64](1000), nil), nil, "capabilities", true},
		"root, no escalation":                     {nonRoot(&sc{}, ptr[int64](0), ptr(false)), nil, "capabilities", true},
		"the image's user, no escalation":         {nonRoot(&sc{}, nil, ptr(false)), nil, "capabilities", true},
		"the pod's user, no escalation":           {nonRoot(&sc{}, nil, ptr(false)), &corev1.PodSecurityContext{RunAsUser: ptr[int64](1)}, "", false},
		"not root by the pod's word":              {nonRoot(&sc{}, nil, ptr(false)), &corev1.PodSecurityContext{RunAsNonRoot: ptr(true)}, "", false},
		"its own word counts before the pod's":    {&sc{RunAsNonRoot: ptr(false), AllowPrivilegeEscalation: ptr(false)}, &corev1.PodSecurityContext{RunAsNonRoot: ptr(true)}, "capabilities", true},
		"a user, and it is added":                 {nonRoot(caps(names{"NET_RAW"}, nil), ptr[int64](1000), ptr(false)), nil, "capabilities", false},
	}
	byMark := redirect.Proxy{Mark: redirect.Mark{Value: 0x77, Mask: 0xfff}, OutboundPort: 15001, InboundPort: 15006}
	container := func(name string, sc *corev1.SecurityContext) []corev1.Container {
		return []corev1.Container{{Name: name, SecurityContext: sc}}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, spec := range []corev1.PodSpec{
				{Containers: container("app", tt.sc)},
				{InitContainers: container("app", tt.sc)}, // for as long as it runs
			} {
				spec.SecurityContext = tt.pod
				s := dialect.Subject{Pod: &corev1.Pod{Spec: spec}}
				plan, err := meshOf(byMark).Plan(s, dialect.Options{})
				require.NoError(t, err)
				_, refused := meshOf(byMark).Plan(s, dialect.Options{RefuseProxyUID: true})
				if tt.field == "" {
					assert.Empty(t, plan.Bypasses)
					assert.NoError(t, refused)
					continue
				}
				assert.Equal(t, []dialect.Bypass{{Code: dialect.BypassNetRaw, Container: "app", Field: tt.field, Inherited: tt.dflt}}, plan.Bypasses)
				assert.ErrorContains(t, refused, plan.Bypasses[0].String())

				// A proxy on the node: what every container has refuses none, unless that is asked for.
				onNode := meshOf(byMark)
				onNode.NodeProxy = &dialect.NodeProxy{}
				there, refused := onNode.Plan(s, dialect.Options{RefuseProxyUID: true})
				assert.Equal(t, plan.Bypasses, there.Bypasses, "it is reported all the same")
				assert.Equal(t, !tt.dflt, refused != nil, "%v", refused)
				for _, d := range []dialect.Dialect{onNode, meshOf(byMark)} {
					_, refused = d.Plan(s, dialect.Options{RefuseNetRaw: true})
					assert.ErrorContains(t, refused, plan.Bypasses[0].String())
				}

				plan, err = meshOf(redirect.Default().Proxy).Plan(s, dialect.Options{RefuseProxyUID: true, RefuseNetRaw: true})
				assert.NoError(t, err)
				assert.Empty(t, plan.Bypasses, "rules that know the proxy by its user do not look at marks")
			}
		})
	}
}

// TestBypassIsRefused: each is an error of its own, and the plan says what there was.
func TestBypassIsRefused(t *testing.T) {
	as := &corev1.SecurityContext{RunAsUser: ptr[int64](2000)}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "proxy", SecurityContext: as}, {Name: "app", SecurityContext: as}, {Name: "logs", SecurityContext: as},
	}}}
	pod.Namespace, pod.Name = "shop", "cart"
	proxy := redirect.Default().Proxy
	proxy.UIDs = []uint32{2000}
	plan, err := meshOf(proxy, "proxy").Plan(dialect.Subject{Pod: pod}, dialect.Options{RefuseProxyUID: true})
	var bypass *dialect.BypassError
	require.True(t, errors.As(err, &bypass))
	assert.Equal(t, dialect.Bypass{Code: dialect.BypassProxyID, Container: "app", Field: "runAsUser", ID: 2000}, bypass.Bypass)
	assert.ErrorContains(t, err, `pod shop/cart: container "app" bypasses the mesh: it runs as the proxy's user, 2000, whose outbound traffic is not redirected`)
	assert.ErrorContains(t, err, `container "logs"`, "all at once")
	assert.ErrorContains(t, err, "give the application another, or the proxy a user of its own")
	assert.True(t, plan.Decision.Selected)
	assert.Equal(t, []dialect.BypassCode{"proxy-id"}, plan.BypassCodes(), "each code once")
	assert.Nil(t, plan.Ruleset.IPv4, "no rules for who is refused")
}

// TestContainersTimesNames: the names that a mesh reads from the pod are not compared with those of all its containers,
// which for these took minutes.
func TestContainersTimesNames(t *testing.T) {
	const many = 200_000
	names := make([]string, many)
	pod := &corev1.Pod{}
	asProxy := &corev1.SecurityContext{RunAsUser: ptr[int64](1337)}
	for i := range names {
		names[i] = fmt.Sprintf("proxy-%06d", i)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("proxy-%06d", i+many/2), SecurityContext: asProxy})
	}
	mesh := meshOf(redirect.Proxy{UIDs: []uint32{1337}, InboundPort: 15006, OutboundPort: 15001}, names...)
	plan, err := mesh.Plan(dialect.Subject{Pod: pod}, dialect.Options{})
	require.NoError(t, err)
	assert.Len(t, plan.Bypasses, many/2)
}
