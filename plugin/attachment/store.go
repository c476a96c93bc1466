package attachment

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
)

const (
	// DirName is the name of the records' directory inside run_dir.
	DirName = "attachments"
	// MaxBytes is the size of the largest record, in bytes. A larger one is not kept: memory that a pod's author can claim
	// must be bounded (run_dir is a tmpfs as a rule), and 4 MiB are some 40 000 rules.
	MaxBytes = 4 << 20
)

// Store keeps records in a directory. The zero Store keeps nothing. Its methods may be used by several processes at once.
type Store struct {
	Dir string
}

// In is the store of a run_dir.
func In(runDir string) Store { return Store{filepath.Join(runDir, DirName)} }

const (
	suffix    = ".json"
	temporary = "." // begins the names of files that are being written; an ID's name begins otherwise
)

// file is the name of the record's file. It stays in the directory whatever the runtime said: what is not letters, digits
// or one of "_.-" is refused, and the parts are told from each other by a character that the first two cannot have.
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

// short keeps a file's name below the 255 bytes that Linux allows (NAME_MAX); the specification bounds neither part.
func short(s string) string {
	if len(s) <= 100 {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "@" + hex.EncodeToString(sum[:])
}

// Write puts the record in place of an earlier one. When that fails there is none: what an earlier one says is no longer
// so. It makes the directory, and run_dir, where they are not there.
func (s Store) Write(r Record) error {
	if s.Dir == "" {
		return nil
	}
	name, err := r.file()
	if err == nil {
		r.Version = Format
		err = s.write(name, r)
	}
	if err != nil {
		return fmt.Errorf("record the attachment: %w", err)
	}
	return nil
}

func (s Store) write(name string, r Record) error {
	text, err := json.Marshal(r)
	if err == nil && len(text) >= MaxBytes {
		err = fmt.Errorf("the record would have %d bytes, of at most %d", len(text), MaxBytes)
	}
	if err == nil {
		err = s.replace(name, append(text, '\n'))
	}
	if err != nil {
		return errors.Join(err, s.remove(name))
	}
	return nil
}

func (s Store) replace(name string, text []byte) error {
	f, err := os.CreateTemp(s.Dir, temporary)
	if errors.Is(err, fs.ErrNotExist) {
		if err = s.mkdir(); err == nil {
			f, err = os.CreateTemp(s.Dir, temporary)
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.Dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func (s Store) mkdir() error {
	if err := os.MkdirAll(filepath.Dir(s.Dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(s.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Read returns the record. Where there is none the error is one for which errors.Is(err, fs.ErrNotExist) holds; any other
// error says that there is something which cannot be read, or is not understood.
func (s Store) Read(id ID) (Record, error) {
	name, err := id.file()
	if err == nil && s.Dir == "" {
		err = fs.ErrNotExist
	}
	var r Record
	if err == nil {
		r, err = s.read(name)
	}
	if err == nil && r.ID != id {
		err = fmt.Errorf("it is of %s", r.ID)
	}
	if err != nil {
		return Record{}, fmt.Errorf("read the attachment's record: %w", err)
	}
	return r, nil
}

func (s Store) read(name string) (r Record, err error) {
	f, err := os.Open(filepath.Join(s.Dir, name))
	if err != nil {
		return r, err
	}
	defer func() { _ = f.Close() }() // only read
	text, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	switch {
	case err != nil:
		return r, err
	case len(text) > MaxBytes:
		return r, fmt.Errorf("%s has more than %d bytes", name, MaxBytes)
	}
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&r); err != nil {
		return Record{}, fmt.Errorf("%s is no record: %w", name, err)
	}
	if err := r.valid(); err != nil {
		return Record{}, fmt.Errorf("%s is no record: %w", name, err)
	}
	return r, nil
}

// All returns every record, or why one cannot be read, in no order. Records that go away meanwhile are left out. Where the
// directory itself cannot be read that is the only error; one that is not there has no records.
func (s Store) All() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		names, err := s.names()
		if err != nil {
			yield(Record{}, fmt.Errorf("list the records of attachments: %w", err))
			return
		}
		for _, name := range names {
			if !strings.HasSuffix(name, suffix) || strings.HasPrefix(name, temporary) {
				continue
			}
			r, err := s.read(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				err = fmt.Errorf("read the record of an attachment: %w", err)
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// names lists the directory's files; one that is not there has none.
func (s Store) names() ([]string, error) {
	if s.Dir == "" {
		return nil, nil
	}
	dir, err := os.Open(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // only read
	return dir.Readdirnames(-1)
}

// Change writes the records that the function has changed, of which it is to report true. It is called for each record that
// can be read; the error names those that cannot, since they may be the ones meant, and what could not be written.
func (s Store) Change(change func(*Record) bool) error {
	var errs []error
	for r, err := range s.All() {
		if err == nil && change(&r) {
			err = s.Write(r)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Remove takes the record away. That there is none is no error. Rules are a namespace's, and stay when one of its
// attachments goes: earlier records of the same container and namespace take them over.
func (s Store) Remove(id ID) error {
	name, err := id.file()
	if err == nil {
		err = errors.Join(s.bequeath(id, name), s.remove(name))
	}
	if err != nil {
		return fmt.Errorf("remove the attachment's record: %w", err)
	}
	return nil
}

func (s Store) bequeath(id ID, name string) error {
	own, err := s.Read(id)
	if err != nil || !own.Selected || own.NetNS.Ino == 0 {
		return nil //nolint:nilerr // nothing that is known of
	}
	names, err := s.names()
	if err != nil {
		return err
	}
	var errs []error
	for _, other := range names {
		if other == name || !strings.Contains(other, "@"+short(id.ContainerID)+"@") || !strings.HasSuffix(other, suffix) {
			continue
		}
		r, err := s.read(other)
		if err != nil || !r.Selected || r.NetNS.Dev != own.NetNS.Dev || r.NetNS.Ino != own.NetNS.Ino || !r.Time.Before(own.Time) {
			continue // also one that has gone meanwhile, or that CHECK cannot read either
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
