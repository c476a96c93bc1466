package plugin

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/plugin/attachment"
)

// environment is what the runtime says about an attachment.
type environment struct {
	command, containerID, netns, ifName, args string
}

// required are the variables that the CNI specification requires for each verb, besides CNI_COMMAND.
func required(command string) (names []string, known bool) {
	switch command {
	case "ADD", "CHECK":
		return []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}, true
	case "DEL":
		return []string{"CNI_CONTAINERID", "CNI_IFNAME"}, true
	case "GC":
		return []string{"CNI_PATH"}, true
	case "STATUS", "VERSION":
		return nil, true
	}
	return nil, false
}

func readEnvironment(getenv func(string) string) (environment, *types.Error) {
	e := environment{
		command:     getenv("CNI_COMMAND"),
		containerID: getenv("CNI_CONTAINERID"),
		netns:       getenv("CNI_NETNS"),
		ifName:      getenv("CNI_IFNAME"),
		args:        getenv("CNI_ARGS"),
	}
	names, known := required(e.command)
	if !known {
		return e, fail(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: %s", e.command)
	}
	var wrong []string
	for _, name := range names {
		if value := getenv(name); value == "" {
			wrong = append(wrong, name+" is missing")
		} else if problem := invalid(name, value); problem != "" {
			wrong = append(wrong, fmt.Sprintf("%s %q %s", name, value, problem))
		}
	}
	if len(wrong) > 0 {
		return e, fail(types.ErrInvalidEnvironmentVariables, "%s needs other environment variables: %s", e.command, strings.Join(wrong, "; "))
	}
	return e, nil
}

// invalid says what is wrong with a value by the specification, section 3, "Attachment Parameters".
func invalid(name, value string) string {
	switch name {
	case "CNI_CONTAINERID":
		if !validName(value) {
			return "is not letters, digits, '_', '.' and '-', a letter or digit first"
		}
	case "CNI_IFNAME":
		bad := func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) }
		if len(value) > 15 || value == "." || value == ".." || strings.ContainsFunc(value, bad) {
			return "is no interface name"
		}
	}
	return ""
}

// validName is the specification's rule for container IDs and network names.
func validName(s string) bool { return attachment.ValidName(s) }

// podID is which pod an attachment is for, as Kubernetes runtimes say in CNI_ARGS.
type podID struct {
	namespace, name, uid string
	sandbox              string // the container's ID, where CNI_ARGS configure the sandbox
}

func (id podID) String() string {
	if id.sandbox != "" {
		return sandboxNamespace + "/" + id.sandbox
	}
	return id.namespace + "/" + id.name
}

func (id podID) isPod() bool { return id.name != "" && id.namespace != "" }

// parseArgs reads CNI_ARGS, "KEY=VALUE;KEY=VALUE". Either name may be absent: then it is no pod.
func parseArgs(args string) (podID, *types.Error) {
	var id podID
	for pair := range strings.SplitSeq(args, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return id, fail(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %q is not KEY=VALUE", pair)
		}
		switch key {
		case "K8S_POD_NAMESPACE":
			id.namespace = value
		case "K8S_POD_NAME":
			id.name = value
		case "K8S_POD_UID":
			id.uid = value
			continue
		default:
			continue
		}
		// They become part of a URL. The API server knows stricter rules, and has the last word.
		if value != "" && !validName(value) {
			return id, fail(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %s=%q is no name of an object", key, value)
		}
	}
	return id, nil
}

// mirrorAnnotation is how the kubelet marks the API's image of a static pod; its value is the UID by which the kubelet
// and the runtime know the pod (k8s.io/kubernetes/pkg/kubelet/types.ConfigMirrorAnnotationKey).
const mirrorAnnotation = "kubernetes.io/config.mirror"

// is returns an error unless the pod is the one that the runtime means. A runtime that gives no UID is believed by name.
func (id podID) is(pod *corev1.Pod) error {
	uid := string(pod.UID)
	if mirror, ok := pod.Annotations[mirrorAnnotation]; ok && mirror == id.uid {
		uid = mirror
	}
	if id.uid == "" || uid == id.uid {
		return nil
	}
	return fmt.Errorf("pod %s has UID %s, and the runtime means %s: another pod of the same name", id, uid, id.uid)
}
