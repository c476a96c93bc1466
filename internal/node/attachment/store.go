package attachment

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/meshcni/meshcni/netnsexec"
)

const (
	// dirName is the directory of the records inside run_dir.
	dirName = "attachments"
	// maxBytes is the size of the largest record that is kept, in bytes. run_dir is usually a tmpfs, and a pod's author
	// must not be able to claim all of it; 4 MiB are some 40 000 rules.
	maxBytes = 4 << 20
)

// Store keeps records in a directory. The zero Store keeps nothing. Several processes may use the same directory at once.
type Store struct {
	Dir string
	// By is the writer of each record that is written here; "" leaves it as the record says.
	By string
}

// Open is the store in a run_dir.
func Open(runDir string) Store { return Store{Dir: filepath.Join(runDir, dirName)} }

const (
	suffix    = ".json"
	temporary = "." // begins the names of files that are being written; an ID's name begins otherwise
)

// ValidName is the CNI specification's rule for container IDs and network names (section 3, "Attachment Parameters").
func ValidName(s string) bool {
	for i, r := range s {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alnum && (i == 0 || r != '_' && r != '.' && r != '-') {
			return false
		}
	}
	return s != ""
}

// file is the name of the record's file. Whatever the runtime said, it stays in the directory and belongs to one ID: the
// separator can occur in neither of the first two parts.
func (id ID) file() (string, error) {
	for what, s := range map[string]string{"network": id.Network, "container ID": id.ContainerID} {
		if !ValidName(s) {
			return "", fmt.Errorf("%s %q is not letters, digits, '_', '.' and '-', a letter or digit first", what, s)
		}
	}
	if id.IfName == "" || len(id.IfName) > 15 || strings.ContainsAny(id.IfName, "/\x00") {
		return "", fmt.Errorf("interface %q is no interface name", id.IfName)
	}
	return short(id.Network) + "@" + short(id.ContainerID) + "@" + id.IfName + suffix, nil
}

// short keeps a file's name below Linux's limit of 255 bytes (NAME_MAX); the specification limits neither part.
func short(s string) string {
	if len(s) <= 100 {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "@" + hex.EncodeToString(sum[:])
}

func wrap(doing string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// Write replaces the attachment's record, and makes the directory and run_dir if necessary. If it fails there is no record
// left, since an earlier one no longer holds.
func (s Store) Write(r Record) error {
	if s.Dir == "" {
		return nil
	}
	name, err := r.file()
	if err == nil {
		r.Version, r.By = Format, cmp.Or(s.By, r.By)
		if err = s.write(name, r); err != nil {
			err = errors.Join(err, s.remove(name))
		}
	}
	return wrap("record the attachment", err)
}

func (s Store) write(name string, r Record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(text) >= maxBytes {
		return fmt.Errorf("the record would have %d bytes, of at most %d", len(text), maxBytes)
	}
	if err := s.replace(name, append(text, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(s.Dir, name), cause(err))
	}
	return nil
}

// replace writes a record's file in one step.
func (s Store) replace(name string, text []byte) error {
	f, err := os.CreateTemp(s.Dir, temporary)
	if errors.Is(err, fs.ErrNotExist) {
		// The directories are made only now, because they are there nearly always.
		if err = os.MkdirAll(filepath.Dir(s.Dir), 0o755); err == nil {
			err = os.Mkdir(s.Dir, 0o700)
		}
		if err == nil || errors.Is(err, fs.ErrExist) {
			f, err = os.CreateTemp(s.Dir, temporary)
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = cmp.Or(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.Dir, name))
	}
	if err != nil {
		_ = os.Remove(f.Name()) // else Retain and Tidy do
	}
	return err
}

// cause strips the paths from an error of package os: a temporary file's random name would make each error a new one.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// Read returns the attachment's record. If there is none, errors.Is(err, fs.ErrNotExist) holds; any other error means that
// the record cannot be read or understood.
func (s Store) Read(id ID) (r Record, err error) {
	name, err := id.file()
	if err == nil && s.Dir == "" {
		err = fs.ErrNotExist
	}
	if err == nil {
		r, err = s.read(name)
	}
	if err == nil && r.ID != id {
		err = fmt.Errorf("it is of %s", r.ID)
	}
	if err != nil {
		return Record{}, wrap("read the attachment's record", err)
	}
	return r, nil
}

func (s Store) read(name string) (r Record, err error) {
	f, err := os.Open(filepath.Join(s.Dir, name))
	if err != nil {
		return r, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("%s has more than %d bytes", name, maxBytes)
	}
	if err != nil {
		return r, err
	}
	if err = json.Unmarshal(text, &r); err == nil {
		err = r.valid()
	}
	if err != nil {
		return Record{}, fmt.Errorf("%s is no record: %w", name, err)
	}
	return r, nil
}

// ReadFile returns the record in a file of Dir, by the file's name. If there is none, or files of that name are no records,
// errors.Is(err, fs.ErrNotExist) holds; any other error means that it cannot be read or understood.
func (s Store) ReadFile(name string) (Record, error) {
	if !isRecord(name) || s.Dir == "" {
		return Record{}, fs.ErrNotExist
	}
	return s.read(name)
}

// All returns every record, or why it cannot be read, in no order. It leaves out records that disappear meanwhile. If the
// directory cannot be read, that is the only error; a directory that does not exist has no records.
func (s Store) All() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		names, err := s.names()
		if err != nil {
			yield(Record{}, err)
			return
		}
		for _, name := range names {
			if !isRecord(name) {
				continue
			}
			r, err := s.read(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if !yield(r, wrap("read the record of an attachment", err)) {
				return
			}
		}
	}
}

func isRecord(name string) bool {
	return strings.HasSuffix(name, suffix) && !strings.HasPrefix(name, temporary)
}

// names lists the directory's files, without sorting them as os.ReadDir would.
func (s Store) names() ([]string, error) {
	if s.Dir == "" {
		return nil, nil
	}
	dir, err := os.Open(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	if err == nil {
		defer func() { _ = dir.Close() }()
		names, err = dir.Readdirnames(-1)
	}
	return names, wrap("list the records of attachments", err)
}

// of lists the files of a container's records.
func (s Store) of(containerID string) ([]string, error) {
	names, err := s.names()
	part := "@" + short(containerID) + "@"
	return slices.DeleteFunc(names, func(name string) bool { return !isRecord(name) || !strings.Contains(name, part) }), err
}

// Has reports whether a container has a record as wanted. One that cannot be read is none.
func (s Store) Has(containerID string, wanted func(Record) bool) bool {
	names, _ := s.of(containerID)
	return slices.ContainsFunc(names, func(name string) bool {
		r, err := s.read(name)
		return err == nil && r.ContainerID == containerID && wanted(r)
	})
}

// Remove removes the attachment's record; that there is none is no error. Rules belong to the namespace and outlive one of
// its attachments, so earlier records of the same container and namespace take them over.
func (s Store) Remove(id ID) error {
	name, err := id.file()
	if err == nil {
		err = errors.Join(s.handOver(id, name), s.remove(name))
	}
	return wrap("remove the attachment's record", err)
}

func (s Store) handOver(id ID, name string) error {
	others, err := s.of(id.ContainerID)
	others = slices.DeleteFunc(others, func(other string) bool { return other == name })
	if err != nil || len(others) == 0 {
		return err
	}
	own, err := s.Read(id)
	if err != nil || !own.Selected || own.NetNS.Ino == 0 {
		return nil //nolint:nilerr // there is nothing to hand over
	}
	var errs []error
	for _, other := range others {
		r, err := s.read(other)
		if err != nil || !r.Selected || r.NetNS.Dev != own.NetNS.Dev || r.NetNS.Ino != own.NetNS.Ino || !r.Time.Before(own.Time) {
			continue // CHECK cannot read a broken one either
		}
		r.Applied(own.Backend, own.Rules, own.Skipped, own.Unusable...)
		r.Dialect, r.By, r.Program, r.Time = own.Dialect, own.By, own.Program, own.Time
		errs = append(errs, s.Write(r))
	}
	return errors.Join(errs...)
}

func (s Store) remove(name string) error {
	if s.Dir == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(s.Dir, name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Retain removes the network's records except those of the given attachments, and the files of writers that were killed. Records that were written at
// that time or later stay too; the zero time stands for now.
func (s Store) Retain(network string, attachments []ID, since time.Time) error {
	keep := map[string]bool{}
	for _, id := range attachments {
		id.Network = network
		if name, err := id.file(); err == nil { // an ID without a name has no record
			keep[name] = true
		}
	}
	return s.removeIf(0, func(name string) bool {
		return strings.HasPrefix(name, short(network)+"@") && strings.HasSuffix(name, suffix) && !keep[name] && (since.IsZero() || s.isOlder(name, since))
	})
}

// Tidying begins at crowded files, several times as many as a node has pods (the kubelet's default limit is 110). One record in
// tidyEvery asks for it, since it lists the directory, and opens all of its files if they are many.
const (
	crowded   = 1024
	tidyEvery = 64
)

// Tidy limits the number of records on a node whose runtime does not call DEL for every attachment: once there are more
// than a thousand it removes those whose network namespace is gone. Call it where the paths of the namespaces mean the same
// as to the runtime, as in the plugin, with the ID of each record that was written: most do nothing. A namespace that cannot be
// looked at counts as existing.
func (s Store) Tidy(written ID) error {
	name, err := written.file()
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name))
	if err != nil || hash.Sum32()>>16%tidyEvery != 0 { // the lower half is much alike for names that are
		return err
	}
	return s.removeIf(crowded, func(name string) bool { return isRecord(name) && s.isOver(name) })
}

// removeIf removes the files that are over, and those that their writers abandoned, if there are enough.
func (s Store) removeIf(atLeast int, over func(name string) bool) error {
	names, err := s.names()
	if err != nil || len(names) < atLeast {
		return err
	}
	var errs []error
	for _, name := range names {
		if s.abandoned(name) || over(name) {
			errs = append(errs, s.remove(name))
		}
	}
	return wrap("remove records of attachments", errors.Join(errs...))
}

// abandoned reports whether a file was left by a writer that was killed: a minute is far longer than writing takes.
func (s Store) abandoned(name string) bool {
	return strings.HasPrefix(name, temporary) && s.isOlder(name, time.Now().Add(-time.Minute))
}

func (s Store) isOlder(name string, than time.Time) bool {
	st, err := os.Lstat(filepath.Join(s.Dir, name))
	return err == nil && st.ModTime().Before(than)
}

// isOver reports whether the record's namespace is known to be gone.
func (s Store) isOver(name string) bool {
	r, err := s.read(name)
	if err != nil {
		return false
	}
	ns, err := netnsexec.Open(r.NetNS.Path)
	if err != nil {
		return errors.Is(err, netnsexec.ErrGone) || errors.Is(err, netnsexec.ErrNotNetNS)
	}
	defer func() { _ = ns.Close() }()
	return r.NetNS.Ino != 0 && !r.NetNS.Is(ns.ID())
}
