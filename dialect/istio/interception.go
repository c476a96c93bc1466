package istio

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/text/podyaml"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// modeNone is the interception mode of a proxy that nothing is redirected to:
// applications connect to it by its address.
const modeNone = "NONE"

// maxProxyConfig bounds a ProxyConfig, in bytes. It is our own: the largest known ones have a few kilobytes.
const maxProxyConfig = 16 << 10

// noneNumber is NONE as a number
// (istio.io/latest/docs/reference/config/istio.mesh.v1alpha1, ProxyConfig.InboundInterceptionMode).
const noneNumber = "2"

// decline leaves a pod alone whose interception mode is NONE. The annotation wins
// over all else, and without a container it alone counts.
func decline(pod *corev1.Pod, proxy *corev1.Container) (status.Code, string) {
	mode, annotated := pod.Annotations[InterceptionMode]
	if annotated && mode == modeNone {
		return status.CodeInterceptionNone, fmt.Sprintf("annotation %s is %q", InterceptionMode, mode)
	}
	if annotated || proxy == nil {
		return "", ""
	}
	o, _ := interception(dialect.Input{Pod: pod, Proxy: proxy}.Values())
	if o.Value != modeNone {
		return "", ""
	}
	return status.CodeInterceptionNone, fmt.Sprintf("%s %s says interception mode %q", o.Source, o.Key, o.Value)
}

// interception finds the interception mode of a pod without an annotation of it: the injector's word to the proxy, else
// the pod's ProxyConfig. The zero Origin: there is none. What cannot be read counts as absent, with a warning, so the
// pod is captured.
//
// Only NONE is taken from here. The other modes come from the annotation alone, as
// with Istio's plugin; the injector leaves one on every pod without init container.
func interception(v redirect.Values) (found redirect.Origin, warnings warning.List) {
	for _, s := range []struct {
		source redirect.Source
		key    string
		values map[string]string
		parse  func(string) (string, error)
	}{
		{redirect.FromEnv, metaInterceptionMode, v.Env, func(s string) (string, error) { return s, nil }},
		{redirect.FromEnv, proxyConfigEnv, v.Env, proxyConfigMode},
		{redirect.FromAnnotation, proxyConfig, v.Annotations, proxyConfigMode},
	} {
		text, ok := s.values[s.key]
		if !ok {
			continue // an empty document would be read too, at the price of all the rest of the decision
		}
		mode, err := s.parse(text)
		if err != nil {
			warnings = append(warnings, warning.New(warning.Invalid, s.key, "%s %s is not read: %v", s.source, s.key, err))
		}
		if mode != "" {
			return redirect.Origin{Field: "mode", Source: s.source, Key: s.key, Value: mode}, warnings
		}
	}
	return redirect.Origin{}, warnings
}

// proxyConfigMode returns the mode of a ProxyConfig, in YAML or JSON; empty if it has none.
func proxyConfigMode(text string) (string, error) {
	var c struct {
		Mode  any `json:"interceptionMode"`
		Proto any `json:"interception_mode"` // the field's protobuf name, which Istio accepts too
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
