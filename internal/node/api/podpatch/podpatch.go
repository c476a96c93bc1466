// Package podpatch makes merge patches of a pod's metadata that hold for one pod only, not for another of its name.
package podpatch

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Patch sets the value of a key in a map of the metadata, "labels" or "annotations", or removes it if the value is empty. The
// UID, and the resource version unless it is empty, are preconditions.
func Patch(uid types.UID, resourceVersion, in, key, value string) ([]byte, error) {
	set := map[string]any{key: value}
	if value == "" {
		set[key] = nil
	}
	meta := map[string]any{"uid": uid, in: set}
	if resourceVersion != "" {
		meta["resourceVersion"] = resourceVersion
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return nil, fmt.Errorf("patch pod %s: %w", uid, err)
	}
	return patch, nil
}

// Answer returns the server's error about such a patch. The server reports another UID as an invalid value: that becomes a
// conflict, for which apierrors.IsConflict(err).
func Answer(pod string, err error) error {
	if apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueInvalid) && strings.Contains(err.Error(), "metadata.uid") {
		return apierrors.NewConflict(corev1.Resource("pods"), pod, err)
	}
	return err
}
