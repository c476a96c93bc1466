package podpatch_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/meshcni/meshcni/internal/node/api/podpatch"
)

func TestPatch(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"on": `{"metadata":{"annotations":{"a/b":"on"},"resourceVersion":"7","uid":"u1"}}`,
		"":   `{"metadata":{"annotations":{"a/b":null},"resourceVersion":"7","uid":"u1"}}`,
	} {
		patch, err := podpatch.Patch("u1", "7", "annotations", "a/b", value)
		require.NoError(t, err)
		assert.JSONEq(t, want, string(patch))
	}
	patch, err := podpatch.Patch("u1", "", "labels", "a", "b")
	require.NoError(t, err)
	assert.JSONEq(t, `{"metadata":{"labels":{"a":"b"},"uid":"u1"}}`, string(patch))
}

func TestAnswer(t *testing.T) {
	t.Parallel()
	kind := corev1.SchemeGroupVersion.WithKind("Pod").GroupKind()
	uid := apierrors.NewInvalid(kind, "p", field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "u2", "field is immutable")})
	assert.True(t, apierrors.IsConflict(podpatch.Answer("p", uid)))
	other := apierrors.NewInvalid(kind, "p", field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations"), "x", "too long")})
	assert.Equal(t, error(other), podpatch.Answer("p", other))
	plain := errors.New("no connection")
	assert.Equal(t, plain, podpatch.Answer("p", plain))
	assert.NoError(t, podpatch.Answer("p", nil))
}
