// Package cnicache reads files of libcni's cache, in which a container runtime keeps the configuration and the result of each
// attachment that it has made. Package inventory is who reads them for others.
package cnicache

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/status"
)

// Dirs are the directories of a cache that have attachments, as "/"-separated paths in it: libcni's own, and cri-dockerd's.
var Dirs = []string{"results", "cache/results"}

// MultusDir is the directory of the attachments that Multus makes by itself (its cniDir), in the same cache.
const MultusDir = "multus/results"

// MaxBytes bounds what is read of a file of the cache, in bytes.
const MaxBytes = 4 << 20

// Attachment is libcni's cachedInfo (libcni/api.go).
type Attachment struct {
	Config                           []byte
	NetworkName, ContainerID, IfName string
	NetNS                            string // of libcni 1.2 and newer
	CniArgs                          [][2]string
	CapabilityArgs                   map[string]json.RawMessage
	Result                           struct {
		Interfaces []struct{ Sandbox string }
		IPs        []struct{ Address string } // of specification 0.3.0 and newer
	}

	// Malformed is the reason that the file is none of libcni's, which could not use it either. All else is then empty.
	Malformed error `json:"-"`
}

// All reads the attachments that a runtime has in a cache now, with their configurations. What cannot be read has an error; the last
// may be that of a directory. A cache that is not there is empty.
func All(fsys fs.FS) iter.Seq2[Attachment, error] {
	return func(yield func(Attachment, error) bool) {
		for _, dir := range Dirs {
			entries, err := fs.ReadDir(fsys, dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !yield(Attachment{}, err) {
				return
			}
			for _, e := range entries {
				if a, err := Read(fsys, path.Join(dir, e.Name())); !yield(a, err) {
					return
				}
			}
		}
	}
}

// Read reads a file of the cache. It returns an empty attachment for what is none.
func Read(fsys fs.FS, name string) (Attachment, error) {
	info, err := fs.Stat(fsys, name) // before opening, which would block on a pipe
	switch {
	case errors.Is(err, fs.ErrNotExist): // its DEL came just now
		return Attachment{}, nil
	case err != nil:
		return Attachment{}, err
	case info.IsDir():
		return Attachment{}, nil
	case !info.Mode().IsRegular():
		return Attachment{}, &fs.PathError{Op: "read", Path: name, Err: errors.New("not a regular file")}
	}
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Attachment{}, nil
	}
	if err != nil {
		return Attachment{}, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err == nil && len(data) > MaxBytes {
		err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("it has more than %d bytes", MaxBytes)}
	}
	if err != nil {
		return Attachment{}, err
	}
	var cached Attachment
	if err := json.Unmarshal(data, &cached); err != nil && !errors.As(err, new(*json.UnmarshalTypeError)) { // libcni may use what only has other types than here
		return Attachment{Malformed: fmt.Errorf("%s: %w", path.Base(name), err)}, nil
	}
	return cached, nil
}

// Pod is the pod that the runtime named.
func (a Attachment) Pod() status.ID {
	return status.ID{Namespace: a.Arg("K8S_POD_NAMESPACE"), Name: a.Arg("K8S_POD_NAME"), UID: a.Arg("K8S_POD_UID")}
}

// Arg returns the value of a key of CNI_ARGS; empty if it is absent. Of several the last counts, as in an environment.
func (a Attachment) Arg(key string) (value string) {
	for _, pair := range a.CniArgs {
		if pair[0] == key {
			value = pair[1]
		}
	}
	return value
}

// Addrs returns the addresses that the attachment was given.
func (a Attachment) Addrs() (addrs []netip.Addr) {
	for _, ip := range a.Result.IPs {
		if p, err := netip.ParsePrefix(ip.Address); err == nil {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

// Sandbox returns the path of the network namespace; empty if the file does not say.
func (a Attachment) Sandbox() string {
	for _, i := range a.Result.Interfaces {
		if a.NetNS == "" && i.Sandbox != "" {
			return i.Sandbox
		}
	}
	return a.NetNS
}

// HoldsEntries reports whether a key of a configuration has further entries below it: a conflist's, and those by which flannel
// and Multus delegate. libcni decodes keys in any case.
func HoldsEntries(key string) bool {
	return slices.Contains([]string{"plugins", "delegate", "delegates"}, strings.ToLower(key))
}

// Types returns the types of the plugins that the attachment was made with, those to which others delegate included. They
// are empty if the file has no configuration, as libcni before 0.8 wrote it.
func (a Attachment) Types() (types []string) {
	var doc any
	if json.Unmarshal(a.Config, &doc) != nil {
		return nil
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, entry := range v {
				walk(entry)
			}
		case map[string]any:
			for key, value := range v {
				if s, ok := value.(string); ok && strings.EqualFold(key, "type") && s != "" && !slices.Contains(types, s) {
					types = append(types, s)
				}
				if HoldsEntries(key) {
					walk(value)
				}
			}
		}
	}
	walk(doc)
	slices.Sort(types)
	return types
}
