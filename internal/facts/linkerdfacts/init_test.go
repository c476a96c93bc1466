package linkerdfacts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/facts/linkerdfacts"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// What linkerd-init's arguments mean, those that read otherwise than they look among them.
func TestInit(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want func(r *redirect.Redirect)
	}{
		"no list of ports is all ports":   {[]string{"--ports-to-redirect", ""}, func(*redirect.Redirect) {}},
		"a list":                          {[]string{"-r", "80,443"}, func(r *redirect.Redirect) { r.Inbound.Ports = redirect.Ports(80, 443) }},
		"group -1 is none":                {[]string{"--proxy-gid", "-1"}, func(*redirect.Redirect) {}},
		"a group":                         {[]string{"--proxy-gid", "2103"}, func(r *redirect.Redirect) { r.Proxy.GIDs = []uint32{2103} }},
		"no IPv6":                         {[]string{"--ipv6=false"}, func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyPass }},
		"IPv6":                            {[]string{"--ipv6"}, func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyCapture }},
		"what changes no rule is no rule": {[]string{"--log-level", "debug"}, func(*redirect.Redirect) {}},
	} {
		t.Run(name, func(t *testing.T) {
			d := linkerd.New()
			read := func(args ...string) redirect.Redirect {
				c := corev1.Container{Name: "linkerd-init", Args: append([]string{"--incoming-proxy-port", "4143", "--outgoing-proxy-port", "4140", "--proxy-uid", "2102"}, args...)}
				r, err := linkerdfacts.New().Init.Read(&d, mesh.InitContainer{Pod: &corev1.Pod{}, Container: &c, Ours: linkerd.DefaultRedirect()})
				require.NoError(t, err)
				return r
			}
			want := read()
			tt.want(&want)
			assert.Equal(t, want.String(), read(tt.args...).String())
		})
	}
}
