package istio_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
)

// Where a pod says how connections reach its proxy, and what counts.
func TestInterception(t *testing.T) {
	none, tproxy := "interceptionMode: NONE\n", "interceptionMode: TPROXY\n"
	config := func(text string) func(*corev1.Pod) { return annotated("proxy.istio.io/config", text) }
	mode := func(m string) func(*corev1.Pod) { return annotated(istio.InterceptionMode, m) }
	// A thousand aliases of a long text: a value of each would be 8 MB.
	aliased := "a: &a " + strings.Repeat("x", 8<<10) + "\nb: [" + strings.Repeat("*a,", 1000) + "]\n" + none
	// Each level has six times the keys of the one before.
	merged := "a0: &a0 {x: 1}\n"
	for i := range 40 {
		merged += fmt.Sprintf("a%[2]d: &a%[2]d {<<: [%[1]s]}\n", strings.Repeat(fmt.Sprintf("*a%d,", i), 6), i+1)
	}
	merged += "<<: *a40\n" + none
	// Says nothing, with a warning: the pod is captured.
	const unread = "unread"
	tests := []struct {
		name    string
		changes []func(*corev1.Pod)
		want    string // NONE, a mode, or the key that is refused
		from    string // the key that says so
	}{
		{"nothing", nil, "REDIRECT", ""},
		{"annotation", []func(*corev1.Pod){mode("NONE")}, "NONE", istio.InterceptionMode},
		{"annotation in other letters", []func(*corev1.Pod){mode("none")}, istio.InterceptionMode, ""},
		{"an empty annotation", []func(*corev1.Pod){mode(""), proxyEnv("ISTIO_META_INTERCEPTION_MODE", "NONE")}, istio.InterceptionMode, ""},
		{"annotation over all else", []func(*corev1.Pod){mode("REDIRECT"), config(none), proxyEnv("ISTIO_META_INTERCEPTION_MODE", "NONE", "PROXY_CONFIG", `{"interceptionMode":"NONE"}`)}, "REDIRECT", istio.InterceptionMode},
		{"annotation over what is wrong elsewhere", []func(*corev1.Pod){mode("TPROXY"), config("{")}, "TPROXY", istio.InterceptionMode},
		{"what the proxy is told", []func(*corev1.Pod){proxyEnv("ISTIO_META_INTERCEPTION_MODE", "NONE")}, "NONE", "ISTIO_META_INTERCEPTION_MODE"},
		{"what the proxy is told, TPROXY", []func(*corev1.Pod){proxyEnv("ISTIO_META_INTERCEPTION_MODE", "TPROXY")}, "REDIRECT", ""},
		{"what the proxy is told, over a later edit", []func(*corev1.Pod){proxyEnv("ISTIO_META_INTERCEPTION_MODE", "REDIRECT"), config(none)}, "REDIRECT", ""},
		{"what the proxy is told is nonsense", []func(*corev1.Pod){proxyEnv("ISTIO_META_INTERCEPTION_MODE", "MAGIC")}, "REDIRECT", ""},
		{"the proxy's configuration", []func(*corev1.Pod){proxyEnv("PROXY_CONFIG", `{"concurrency":2,"interceptionMode":"NONE"}`)}, "NONE", "PROXY_CONFIG"},
		{"a configuration that says nothing", []func(*corev1.Pod){proxyEnv("PROXY_CONFIG", "{}\n"), config(none)}, "NONE", "proxy.istio.io/config"},
		{"ProxyConfig", []func(*corev1.Pod){config("concurrency: 2\n" + none)}, "NONE", "proxy.istio.io/config"},
		{"ProxyConfig, TPROXY", []func(*corev1.Pod){config(tproxy)}, "REDIRECT", ""},
		{"ProxyConfig, as a number", []func(*corev1.Pod){config("interceptionMode: 2")}, "NONE", "proxy.istio.io/config"},
		{"ProxyConfig, by the protocol's name", []func(*corev1.Pod){config("interception_mode: NONE")}, "NONE", "proxy.istio.io/config"},
		{"ProxyConfig of a deeper level", []func(*corev1.Pod){config("proxyMetadata: {interceptionMode: NONE}")}, "REDIRECT", ""},
		{"ProxyConfig with aliases elsewhere", []func(*corev1.Pod){config(aliased)}, "REDIRECT", unread},
		{"ProxyConfig with merges of merges", []func(*corev1.Pod){config(merged)}, "REDIRECT", unread},
		{"ProxyConfig that is none", []func(*corev1.Pod){config("{")}, "REDIRECT", unread},
		{"ProxyConfig of another mode", []func(*corev1.Pod){config("interceptionMode: none")}, "REDIRECT", ""},
		{"ProxyConfig of another type", []func(*corev1.Pod){config("interceptionMode: [NONE]")}, "REDIRECT", unread},
		{"ProxyConfig that is a list", []func(*corev1.Pod){config("[interceptionMode, NONE]")}, "REDIRECT", unread},
		{"ProxyConfig without end", []func(*corev1.Pod){config(strings.Repeat("#", 17<<10) + "\n" + none)}, "REDIRECT", unread},
	}
	d := istio.New()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := meshed(tt.changes...)
			decision := d.Decide(pod, nil)
			if tt.want == "NONE" {
				assert.Equal(t, status.CodeInterceptionNone, decision.Reason)
				assert.False(t, decision.Selected)
				assert.Contains(t, decision.Detail, tt.from)
				assert.Contains(t, decision.Detail, `"NONE"`)
				return
			}
			assert.Equal(t, status.CodeSelected, decision.Reason)
			built, err := d.Redirect(pod, nil, nil)
			if tt.want != "REDIRECT" && tt.want != "TPROXY" {
				var e *redirect.SettingError
				require.True(t, errors.As(err, &e), "%v", err)
				assert.Equal(t, tt.want, e.Key)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, redirect.Mode(tt.want), built.Redirect.Mode)
			var origins []redirect.Origin
			for _, o := range built.Origins {
				if o.Field == "mode" {
					origins = append(origins, o)
				}
			}
			require.Len(t, origins, 1)
			if tt.from == unread {
				require.Len(t, built.Warnings, 1)
				assert.Contains(t, built.Warnings[0].Text, "proxy.istio.io/config"+" is not read: ")
				assert.Less(t, len(built.Warnings[0].Text), 300)
				return
			}
			assert.Empty(t, built.Warnings)
			assert.Equal(t, tt.from, origins[0].Key)
		})
	}
}

// The reasons that come before: a pod that was never injected has no mode.
func TestInterceptionComesLast(t *testing.T) {
	none := annotated(istio.InterceptionMode, "NONE")
	tests := map[status.Code]func(*corev1.Pod){
		status.CodeNotInjected:   func(p *corev1.Pod) { delete(p.Annotations, istio.StatusAnnotation) },
		status.CodeNoProxy:       func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[1:] },
		status.CodeInitContainer: func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "istio-init"}} },
	}
	for want, change := range tests {
		assert.Equal(t, want, istio.New().Decide(meshed(none, change), nil).Reason)
	}
}

// What a runtime knows without asking anybody: the annotation, which nothing
// overrides; a ProxyConfig is overridden by what only the container shows.
func TestInterceptionByAnnotationsAlone(t *testing.T) {
	p := istio.New().Policy
	decision, out := p.RuleOut(meshed(annotated(istio.InterceptionMode, "NONE")).Annotations)
	assert.True(t, out)
	assert.Equal(t, status.CodeInterceptionNone, decision.Reason)
	for _, change := range []func(*corev1.Pod){
		annotated(istio.InterceptionMode, "TPROXY"), annotated(istio.InterceptionMode, "MAGIC"), annotated("proxy.istio.io/config", "interceptionMode: NONE"),
	} {
		_, out = p.RuleOut(meshed(change).Annotations)
		assert.False(t, out)
	}
}
