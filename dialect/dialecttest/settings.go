package dialecttest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/warning"
)

// Setting is a setting with a value, and what it makes of the Redirect.
type Setting struct {
	Key, Value string
	// Source is where it stands: [redirect.FromAnnotation] (the default),
	// FromNamespace, FromLabel, or FromEnv for the proxy container's environment.
	Source redirect.Source
	// Want turns the Redirect of a pod without settings into the expected one.
	// Nil: the value is refused, with an error that names key and value.
	Want func(*redirect.Redirect)
	// Ignored says that a bad value is ignored, with a warning that names the key,
	// in place of being refused (see [redirect.Setting.Lenient]).
	Ignored bool
}

// Settings builds the pod once with each setting. The table must try each of the keys with a good value and with a bad
// one. Defaults is the Redirect of the pod as given.
func Settings(t *testing.T, d dialect.Dialect, pod *corev1.Pod, defaults redirect.Redirect, keys []string, table []Setting) {
	t.Helper()
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	good, bad := map[string]bool{}, map[string]bool{}
	for _, s := range table {
		if s.Want == nil {
			bad[s.Key] = true
		} else {
			good[s.Key] = true
		}
		t.Run(s.Key+"="+strings.ReplaceAll(s.Value, "/", "|"), func(t *testing.T) { s.run(t, d, pod, defaults.Clone()) })
	}
	for _, key := range keys {
		if !good[key] || !bad[key] {
			t.Errorf("the table lacks a good or a bad value of %s", key)
		}
	}
}

func (s Setting) run(t *testing.T, d dialect.Dialect, pod *corev1.Pod, want redirect.Redirect) {
	t.Helper()
	p, ns := pod.DeepCopy(), &corev1.Namespace{}
	set := func(m *map[string]string) {
		if *m == nil {
			*m = map[string]string{}
		}
		(*m)[s.Key] = s.Value
	}
	switch s.Source {
	case redirect.FromAnnotation, "":
		set(&p.Annotations)
	case redirect.FromNamespace:
		set(&ns.Annotations)
	case redirect.FromLabel:
		set(&p.Labels)
	case redirect.FromEnv:
		proxy := d.Policy.Proxy(p)
		if proxy == nil {
			t.Fatalf("the pod has no proxy container, so no environment")
		}
		proxy.Env = append(proxy.Env, corev1.EnvVar{Name: s.Key, Value: s.Value})
	default:
		t.Fatalf("a setting cannot be tried in %q", s.Source)
	}
	got, err := d.Redirect(p, ns, Addrs())
	if s.Want == nil && !s.Ignored {
		s.refused(t, err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	ignored := func(w warning.Warning) bool { return w.Key == s.Key && w.Code != warning.Deprecated }
	if slices.ContainsFunc(got.Warnings, ignored) != s.Ignored {
		t.Errorf("the warnings should say that %s is ignored: %t, but are %q", s.Key, s.Ignored, got.Warnings.Texts())
	}
	if s.Want != nil {
		s.Want(&want)
	}
	assert.Equal(t, want, got.Redirect)
}

func (s Setting) refused(t *testing.T, err error) {
	t.Helper()
	var e *redirect.SettingError
	switch {
	case !errors.As(err, &e):
		t.Errorf("it is not refused with a SettingError: %v", err)
	case e.Key != s.Key || e.Value != s.Value:
		t.Errorf("the error names %s=%q", e.Key, e.Value)
	case e.Allowed == "" && e.Err == nil:
		t.Errorf("the error does not say what is wrong")
	}
}
