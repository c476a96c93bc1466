package istio

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
)

// modeNone is the interception mode with which Istio's injector adds a proxy
// that nothing is redirected to: applications speak to it by its address.
const modeNone = "NONE"

// maxProxyConfig bounds, in bytes, a ProxyConfig that is read. It is our own:
// the largest known ones have a few kilobytes.
const maxProxyConfig = 16 << 10

// modes are ProxyConfig's, by the numbers that stand for them as well
// (istio.io/latest/docs/reference/config/istio.mesh.v1alpha1).
var modes = map[string]string{"0": string(redirect.ModeRedirect), "1": string(redirect.ModeTProxy), "2": modeNone}

// interception finds out how the pod says that connections reach its proxy,
// where its annotation does not say so: first from what the injector has told
// the proxy, which is what came of all that it knew; else from the pod's
// ProxyConfig. No origin: nothing says so. The error is a
// [*redirect.SettingError].
func interception(g redirect.Given) (*redirect.Origin, error) {
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
		value := s.values[s.key]
		if value == "" {
			continue
		}
		mode, err := s.parse(value)
		if err == nil && mode == "" {
			continue
		}
		if err == nil && mode != modeNone {
			err = setMode(&redirect.Redirect{}, mode)
		}
		if err != nil {
			return nil, &redirect.SettingError{Source: s.source, Key: s.key, Value: value, Allowed: "interceptionMode REDIRECT, TPROXY or NONE", Err: err}
		}
		return &redirect.Origin{Field: "mode", Source: s.source, Key: s.key, Value: mode}, nil
	}
	return nil, nil
}

// proxyConfigMode reads the mode from a ProxyConfig, in YAML or JSON; empty: it
// has none. The rest is not even decoded, so an alias in it costs nothing.
func proxyConfigMode(text string) (string, error) {
	if len(text) > maxProxyConfig {
		return "", fmt.Errorf("it has %d bytes, more than %d", len(text), maxProxyConfig)
	}
	var c struct {
		Mode  string `yaml:"interceptionMode"`
		Proto string `yaml:"interception_mode"` // the field's name in the protocol, which Istio takes as well
	}
	err := yaml.Unmarshal([]byte(text), &c)
	var types *yaml.TypeError // whose words are Go's
	if errors.As(err, &types) {
		return "", errors.New("it is no mapping, or its interceptionMode is no word")
	}
	if err != nil {
		return "", fmt.Errorf("read ProxyConfig: %w", err)
	}
	if c.Mode == "" {
		c.Mode = c.Proto
	}
	if named, ok := modes[c.Mode]; ok {
		c.Mode = named
	}
	return c.Mode, nil
}

// notIntercepted says why nothing is to be redirected to the pod's proxy, if
// that is so. Without a container it goes by the annotation alone, which wins
// over all else; what cannot be read is Build's to refuse.
func notIntercepted(pod *corev1.Pod, proxy *corev1.Container) (string, bool) {
	if mode, ok := pod.Annotations[InterceptionMode]; ok {
		return fmt.Sprintf("annotation %s is %q", InterceptionMode, mode), mode == modeNone
	}
	if proxy == nil {
		return "", false
	}
	o, err := interception(dialect.Input{Pod: pod, Proxy: proxy}.Given())
	if err != nil || o == nil || o.Value != modeNone {
		return "", false
	}
	return fmt.Sprintf("%s %s says interception mode %q", o.Source, o.Key, o.Value), true
}
