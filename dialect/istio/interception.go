package istio

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/podyaml"
	"github.com/meshcni/meshcni/redirect"
)

// modeNone is the interception mode with which Istio's injector adds a proxy
// that nothing is redirected to: applications speak to it by its address.
const modeNone = "NONE"

// maxProxyConfig bounds, in bytes, a ProxyConfig that is read. It is our own:
// the largest known ones have a few kilobytes.
const maxProxyConfig = 16 << 10

// noneNumber stands for NONE as well
// (istio.io/latest/docs/reference/config/istio.mesh.v1alpha1, ProxyConfig.InboundInterceptionMode).
const noneNumber = "2"

// notIntercepted says why nothing is to be redirected to the pod's proxy, if
// that is so. The annotation wins over all else, and without a container it
// alone counts.
func notIntercepted(pod *corev1.Pod, proxy *corev1.Container) (string, bool) {
	if mode, ok := pod.Annotations[InterceptionMode]; ok {
		return fmt.Sprintf("annotation %s is %q", InterceptionMode, mode), mode == modeNone
	}
	if proxy == nil {
		return "", false
	}
	o, _ := interception(dialect.Input{Pod: pod, Proxy: proxy}.Values())
	if o.Value != modeNone {
		return "", false
	}
	return fmt.Sprintf("%s %s says interception mode %q", o.Source, o.Key, o.Value), true
}

// interception finds the first that says an interception mode, where the pod's
// annotation of that name does not: what the injector has told the proxy, which
// is what came of all that it knew, and else the pod's ProxyConfig. The zero
// Origin: none does. What cannot be read says nothing, so that the pod is
// captured: that is for a warning.
//
// Only NONE is taken from here. Which of the other modes a pod has goes by its
// annotation alone, as with Istio's own plugin; its injector leaves one on every
// pod that has no init container.
func interception(g redirect.Values) (said redirect.Origin, warnings []string) {
	for _, s := range []struct {
		source redirect.Source
		key    string
		values map[string]string
		parse  func(string) (string, error)
	}{
		{redirect.FromEnv, MetaInterceptionMode, g.Env, func(s string) (string, error) { return s, nil }},
		{redirect.FromEnv, ProxyConfigEnv, g.Env, proxyConfigMode},
		{redirect.FromAnnotation, ProxyConfig, g.Annotations, proxyConfigMode},
	} {
		mode, err := s.parse(s.values[s.key])
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("%s %s is not read: %v", s.source, s.key, err))
		}
		if mode != "" {
			return redirect.Origin{Field: "mode", Source: s.source, Key: s.key, Value: mode}, warnings
		}
	}
	return redirect.Origin{}, warnings
}

// proxyConfigMode reads the mode from a ProxyConfig, in YAML or JSON; empty: it
// has none.
func proxyConfigMode(text string) (string, error) {
	var c struct {
		Mode  any `json:"interceptionMode"`
		Proto any `json:"interception_mode"` // the field's name in the protocol, which Istio takes as well
	}
	if err := podyaml.Unmarshal([]byte(text), maxProxyConfig, &c); err != nil {
		return "", fmt.Errorf("read ProxyConfig: %w", err)
	}
	mode := c.Mode
	if mode == nil {
		mode = c.Proto
	}
	switch m := mode.(type) {
	case nil:
		return "", nil
	case string:
		if m == noneNumber {
			m = modeNone
		}
		return m, nil
	case float64: // as JSON has numbers
		if fmt.Sprint(m) == noneNumber {
			return modeNone, nil
		}
		return fmt.Sprint(m), nil
	}
	return "", fmt.Errorf("read ProxyConfig: interceptionMode is no word")
}
