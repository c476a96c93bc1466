// Package podid says by which UID a node's runtime knows a pod, and whether a pod has ended.
//
// The runtime and the control groups know a pod by the UID that the API server gave it. A static pod is the exception: the kubelet
// reads it from a file and makes up its UID, and the API server has a mirror of it with another one. The mirror repeats the kubelet's
// UID in an annotation. Anybody who may create pods can write that annotation, so by itself it proves nothing: only together with
// what the runtime says of the pod's namespace, name and UID does it.
package podid

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// staticBytes is the length of a UID that a kubelet makes: an MD5 sum in hexadecimal digits (k8s.io/kubernetes,
// pkg/kubelet/config/common.go, applyDefaults).
const staticBytes = 32

// IsStatic reports whether a UID has the form of those that a kubelet makes. The API server's are UUIDs with hyphens, so no pod of
// the API server has one.
func IsStatic(uid string) bool {
	return len(uid) == staticBytes && strings.Trim(uid, "0123456789abcdef") == ""
}

// maxUID bounds a UID, in bytes. UUIDs have 36.
const maxUID = 64

// IsUID reports whether a text may be a pod's UID: the API server's are UUIDs, and those of static pods hashes.
func IsUID(text string) bool {
	return text != "" && len(text) <= maxUID && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

// Mirrored returns the UID of the static pod that a pod says it mirrors; "" if it says none, or what cannot be one. Whether it is
// true is for the runtime to say: see [Is].
func Mirrored(pod *corev1.Pod) types.UID {
	if uid := pod.Annotations[corev1.MirrorPodAnnotationKey]; IsStatic(uid) {
		return types.UID(uid)
	}
	return ""
}

// Is reports whether the runtime means the pod by a namespace, a name and a UID.
func Is(pod *corev1.Pod, namespace, name, uid string) bool {
	return uid != "" && pod.Namespace == namespace && pod.Name == name && (string(pod.UID) == uid || string(Mirrored(pod)) == uid)
}

// Ended reports whether a pod's containers have ended for good. A node may have many thousands of such pods, until somebody deletes them.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// OwnUsers reports whether a pod has a user namespace of its own, as far as it is known.
func OwnUsers(pod *corev1.Pod) bool {
	return pod != nil && pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers
}
