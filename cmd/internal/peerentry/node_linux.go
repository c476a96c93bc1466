package peerentry

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pmezard/go-difflib/difflib"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/files/confdir"
	"github.com/meshcni/meshcni/internal/files/diskfile"
)

// Node holds the directories of the files.
type Node struct {
	// Dir has the network configurations, BinDirs the plugins.
	Dir     string
	BinDirs []string
	// Type is the other's plugin, Own ours.
	Type, Own string

	changing func() // for tests: after the list was read, before it is changed
}

// attempts bounds the readings of a list that somebody else changes meanwhile.
const attempts = 5

// Show returns what is on the node.
func (n Node) Show() (State, error) {
	s, _, err := n.look()
	return s, err
}

// Take takes the other's entries out of the list that the runtime loads, and keeps them. If there is none, it changes nothing, and
// still holds the list to have ours. With dry, it says only what it would do.
//
// Errors: [ErrNoOwn], [ErrOwnFile], [ErrFoughtOver], those of [conflist.Remove] and [conflist.Primary], and what writing gave. The
// list is then as it was, except for ErrFoughtOver.
func (n Node) Take(dry bool) (State, error) {
	return n.change(dry, func(s State, now []byte) ([]byte, error) {
		switch {
		case !s.Own:
			return nil, ErrNoOwn
		case s.File == "00-"+n.Own+".conflist":
			return nil, ErrOwnFile
		case !s.Chained:
			return now, nil
		}
		rest, err := conflist.Remove(now, n.Type)
		if err != nil || dry {
			return rest, err
		}
		return rest, n.keep(s, now, rest)
	})
}

// Restore puts back what Take has taken out, and forgets it. If the other's entry is in the list again, by its own installer, that
// is left as it is. With dry, it says only what it would do.
//
// Errors: [ErrNothingKept], [ErrNoBinary], [ErrUnread], [ErrFoughtOver], those of [conflist.Restore] and [conflist.Primary], and what
// writing gave. The list is then as it was, except for ErrFoughtOver.
func (n Node) Restore(dry bool) (State, error) {
	s, err := n.change(dry, func(s State, now []byte) ([]byte, error) {
		switch {
		case s.Chained:
			return now, nil
		case s.KeptError != "":
			return nil, fmt.Errorf("%w: %s", ErrUnread, s.KeptError)
		case s.Kept == nil:
			return nil, ErrNothingKept
		case !s.Binary:
			return nil, ErrNoBinary
		}
		return conflist.Restore(now, s.Kept.List, n.Type)
	})
	if err == nil && !dry {
		if err = diskfile.Delete(n.kept()); err == nil {
			s.Kept, s.KeptError = nil, ""
		}
	}
	return s, err
}

// change replaces the list by what the function makes of it, and holds the result to be what the runtime loads.
func (n Node) change(dry bool, to func(State, []byte) ([]byte, error)) (State, error) {
	for range attempts {
		s, now, err := n.look()
		if err != nil {
			return s, err
		}
		next, err := to(s, now)
		if err != nil {
			return s, fmt.Errorf("%s: %w", s.File, err)
		}
		if s.Changed = !bytes.Equal(now, next); !s.Changed {
			return s, nil
		}
		if s.Diff, err = diff(s.File, now, next); err != nil || dry {
			return s, err
		}
		if n.changing != nil {
			n.changing()
		}
		err = diskfile.Replace(filepath.Join(n.Dir, s.File), now, next)
		if errors.Is(err, diskfile.ErrChanged) {
			continue
		}
		if err != nil {
			return s, err
		}
		after, found, err := n.look()
		after.Changed, after.Diff = true, s.Diff
		if err == nil && !bytes.Equal(found, next) {
			err = fmt.Errorf("%s: %w", s.File, ErrFoughtOver)
		}
		return after, err
	}
	return State{}, fmt.Errorf("%s: %w", n.Dir, ErrFoughtOver)
}

func (n Node) look() (s State, list []byte, err error) {
	fsys, done, err := confdir.Open(n.Dir)
	if err != nil {
		return s, nil, fmt.Errorf("open the directory of network configurations: %w", err)
	}
	defer done()
	choice, err := conflist.Primary(fsys)
	if err != nil {
		return s, nil, fmt.Errorf("find the list that the runtime loads in %s: %w", n.Dir, err)
	}
	s.File, s.Network, s.Plugins = choice.Name, choice.File.Network(), []string{}
	for _, p := range choice.File.Plugins() {
		s.Plugins = append(s.Plugins, p.Type)
	}
	s.Chained, s.Own = choice.File.Has(n.Type), choice.File.Has(n.Own)
	for _, dir := range n.BinDirs {
		if info, err := os.Stat(filepath.Join(dir, n.Type)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			s.Binary = true
		}
	}
	text, err := fs.ReadFile(fsys, filepath.Base(n.kept()))
	var k Kept
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, choice.File.Bytes(), nil
	case err == nil:
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		s.KeptError = err.Error()
	} else {
		s.Kept = &k
	}
	return s, choice.File.Bytes(), nil
}

// kept is the file that has what was taken out. Its extension is none of those at which a runtime looks.
func (n Node) kept() string { return filepath.Join(n.Dir, "."+n.Own+"-taken-"+n.Type+".kept") }

func (n Node) keep(s State, list, rest []byte) error {
	sum := sha256.Sum256(rest)
	k := Kept{Type: n.Type, File: s.File, Network: s.Network, Time: time.Now().UTC().Truncate(time.Second), Rest: hex.EncodeToString(sum[:]), List: list}
	f, err := conflist.Parse(list)
	if err != nil {
		return err
	}
	for i, p := range f.Plugins() {
		if p.Type == n.Type {
			k.Entries, k.Behind = append(k.Entries, p.Raw), append(k.Behind, s.Plugins[:i])
		}
	}
	text, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		return err
	}
	return diskfile.Write(n.kept(), append(text, '\n'), 0o600)
}

// diff is the change of a list, as diff -u prints it.
func diff(name string, a, b []byte) (string, error) {
	return difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(string(a)), B: difflib.SplitLines(string(b)), FromFile: name, ToFile: name, Context: 2,
	})
}
