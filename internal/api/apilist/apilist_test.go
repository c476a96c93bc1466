package apilist

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestListOutlives: a list goes on where it was when the API server has forgotten how it was. What else it refuses is an error.
func TestListOutlives(t *testing.T) {
	page := func(next string, names ...string) *corev1.PodList {
		l := &corev1.PodList{ListMeta: metav1.ListMeta{Continue: next}}
		for _, name := range names {
			l.Items = append(l.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		return l
	}
	expired := func(next string) error {
		err := apierrors.NewResourceExpired("the provided continue parameter is too old")
		err.ErrStatus.Continue = next
		return err
	}
	for name, test := range map[string]struct {
		old   error
		names []string
		err   string
	}{
		"it goes on":        {expired("newer"), []string{"a", "b", "c"}, ""},
		"no place is given": {expired(""), []string{"a"}, "too old"},
		"another error":     {apierrors.NewInternalError(context.Canceled), []string{"a"}, "context canceled"},
	} {
		var names []string
		err := Each(t.Context(), func(_ context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
			switch o.Continue {
			case "":
				return page("older", "a"), nil
			case "older":
				return nil, test.old
			}
			return page("", "b", "c"), nil
		}, metav1.ListOptions{}, func(pod *corev1.Pod) { names = append(names, pod.Name) })
		assert.Equal(t, test.names, names, name)
		if test.err == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, test.err, name)
		}
	}
}
