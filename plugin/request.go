package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// request is the runtime's request: environment and stdin, parsed.
type request struct {
	command, netns, args string
	attachment           attachment.ID
	pod                  podID

	config  netconf.Config
	prev    *prevResult // nil: none
	unknown []string    // keys of the configuration
	wrong   error       // what is wrong with the configuration, where it does not matter
	stdin   []byte
}

// required are the variables that the CNI specification requires for each verb besides CNI_COMMAND.
var required = map[string][]string{
	"ADD":     {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"},
	"CHECK":   {"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"},
	"DEL":     {"CNI_CONTAINERID", "CNI_IFNAME"},
	"GC":      {"CNI_PATH"},
	"STATUS":  nil,
	"VERSION": nil,
}

// parse reads the request. A request that fails to parse still has what could be read, for the error's record and version.
// usable is asked what else is wrong with a wrong configuration, so that all of it is said at once.
func parse(o IO, id meshcni.Identity, usable func(netconf.Config) error) (r request, failure *types.Error) {
	r.config.CNIVersion = newest()
	if failure = r.parseEnvironment(o.Getenv); failure != nil {
		return r, failure
	}
	var err error
	if r.stdin, err = io.ReadAll(o.Stdin); r.command == "VERSION" {
		return r, nil
	}
	if err != nil {
		return r, fail(types.ErrIOFailure, "read network configuration from stdin: %v", err)
	}
	r.config, r.unknown, r.wrong = netconf.Parse(r.stdin, id)
	if r.config.PrevResult != nil {
		if r.prev, err = parsePrevResult(r.config.PrevResult, r.config.CNIVersion); err != nil {
			r.wrong = errors.Join(r.wrong, fmt.Errorf("prevResult: %w", err))
		}
	}
	asked := r.config.CNIVersion
	if !slices.Contains(supported, asked) {
		r.config.CNIVersion = newest()
	}
	r.attachment.Network = r.config.Name
	if failure = acceptable(r.command, asked, r.config.Name, r.wrong); failure != nil {
		return r, failure
	}
	// A bad value of a key that only ADD and STATUS use must neither keep a pod from going away nor fail its CHECK.
	if r.wrong != nil && (r.command == "ADD" || r.command == "STATUS") {
		return r, fail(types.ErrInvalidNetworkConfig, "network configuration: %v", errors.Join(r.wrong, usable(r.config)))
	}
	if r.command == "ADD" || r.command == "CHECK" {
		r.pod, failure = parseArgs(r.args)
	}
	return r, failure
}

func (r *request) parseEnvironment(getenv func(string) string) *types.Error {
	r.command, r.netns, r.args = getenv("CNI_COMMAND"), getenv("CNI_NETNS"), getenv("CNI_ARGS")
	r.attachment.ContainerID, r.attachment.IfName = getenv("CNI_CONTAINERID"), getenv("CNI_IFNAME")
	names, known := required[r.command]
	if !known {
		return fail(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: %s", r.command)
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
		return fail(types.ErrInvalidEnvironmentVariables, "%s needs other environment variables: %s", r.command, strings.Join(wrong, "; "))
	}
	return nil
}

// invalid reports a value that violates the CNI specification, section 3, "Attachment Parameters".
func invalid(name, value string) string {
	switch name {
	case "CNI_CONTAINERID":
		if !attachment.ValidName(value) {
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

// acceptable checks what every verb needs: JSON, a network name, and a version that has the verb.
func acceptable(command, version, name string, wrong error) *types.Error {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	switch {
	case errors.As(wrong, &syntax):
		return fail(types.ErrDecodingFailure, "decode network configuration: at byte %d: %v", syntax.Offset, wrong)
	case errors.As(wrong, &kind):
		return fail(types.ErrDecodingFailure, "decode network configuration: want a JSON object, not %s", kind.Value)
	case wrong != nil && (name == "" || version == ""):
		return fail(types.ErrInvalidNetworkConfig, "network configuration: %v", wrong) // name or version may be what is wrong
	case name == "":
		return fail(types.ErrInvalidNetworkConfig, "network configuration: name is missing")
	case !attachment.ValidName(name):
		return fail(types.ErrInvalidNetworkConfig, "network configuration: name %q is not letters, digits, '_', '.' and '-'", name)
	case !slices.Contains(supported, version):
		if version == "" {
			version = "0.1.0" // the specification's meaning of no version
		}
		return hint(fail(types.ErrIncompatibleCNIVersion, "incompatible CNI versions"), "config is %q, plugin supports %q", version, supported)
	case slices.Index(supported, version) < slices.Index(supported, since(command)):
		return fail(types.ErrIncompatibleCNIVersion, "config version does not allow %s: it is %s, and the verb came with %s",
			command, version, since(command))
	}
	return nil
}

// since is the version of the specification that introduced the verb.
func since(command string) string {
	switch command {
	case "CHECK":
		return "0.4.0"
	case "GC", "STATUS":
		return "1.1.0"
	}
	return supported[0]
}

// podID is the pod that an attachment is for, as Kubernetes runtimes pass it in CNI_ARGS.
type podID struct {
	namespace, name, uid string
}

func (id podID) String() string { return id.namespace + "/" + id.name }

func (id podID) isPod() bool { return id.name != "" && id.namespace != "" }

// parseArgs reads CNI_ARGS, "KEY=VALUE;KEY=VALUE". If either name is absent, the attachment is not a pod's.
func parseArgs(args string) (podID, *types.Error) {
	var id podID
	for pair := range strings.SplitSeq(args, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return podID{}, fail(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %q is not KEY=VALUE", pair)
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
		// Both become part of a URL. The API server has stricter rules and the last word.
		if value != "" && !attachment.ValidName(value) {
			return podID{}, fail(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %s=%q is no name of an object", key, value)
		}
	}
	return id, nil
}

// is returns an error unless the pod is the one that the runtime means. If the runtime passes no UID, the name decides.
func (id podID) is(pod *corev1.Pod) error {
	if id.uid == "" || podid.Is(pod, id.namespace, id.name, id.uid) {
		return nil
	}
	if pod.Annotations[corev1.MirrorPodAnnotationKey] == id.uid {
		// The kubelet keeps such a UID, which could be that of any pod of the API server. Anybody can write the annotation.
		return fmt.Errorf("pod %s is said to mirror a static pod with UID %s, which no kubelet makes: remove metadata.uid from its manifest", id, id.uid)
	}
	return fmt.Errorf("pod %s has UID %s, and the runtime means %s: another pod of the same name", id, pod.UID, id.uid)
}
