package dialecttest

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
)

// Setting is one annotation with a value, and what it makes of the Redirect.
type Setting struct {
	Key, Value string
	// Namespace puts it on the namespace instead of the pod.
	Namespace bool
	// Want changes the Redirect of a pod that says nothing into the one that is
	// expected. Nil: the value is refused, and the error names key and value.
	Want func(*redirect.Redirect)
}

// Settings builds the pod once with each setting. The table must try every one
// of the keys, with a value that is taken and one that is refused. When pod
// says something itself, defaults is what it makes.
func Settings(t *testing.T, d dialect.Dialect, pod *corev1.Pod, defaults redirect.Redirect, keys []string, table []Setting) {
	t.Helper()
	taken, refused := map[string]bool{}, map[string]bool{}
	for _, s := range table {
		t.Run(s.Key+"="+strings.ReplaceAll(s.Value, "/", "|"), func(t *testing.T) {
			p, ns := pod.DeepCopy(), &corev1.Namespace{}
			if p.Annotations == nil {
				p.Annotations = map[string]string{}
			}
			if s.Namespace {
				ns.Annotations = map[string]string{s.Key: s.Value}
			} else {
				p.Annotations[s.Key] = s.Value
			}
			built, err := d.Redirect(p, ns, Addrs())
			if s.Want == nil {
				refused[s.Key] = true
				isRefused(t, err, s)
				return
			}
			taken[s.Key] = true
			if err != nil {
				t.Fatal(err)
			}
			want := defaults.Clone()
			s.Want(&want)
			assert.Equal(t, want, built.Redirect)
		})
	}
	for _, key := range keys {
		if !taken[key] || !refused[key] {
			t.Errorf("the table lacks a good or a bad value of %s", key)
		}
	}
}

func isRefused(t *testing.T, err error, s Setting) {
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
