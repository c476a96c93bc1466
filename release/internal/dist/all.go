package dist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/release/internal/programs"
	"github.com/meshcni/meshcni/release/internal/source"
)

// Record is the name of the file that says what else the bytes depend on: the stamp and the toolchain.
const Record = "release.json"

// record is what is in it.
type record struct {
	source.Stamp
	Go string `json:"go"`
	// Plugin is for what the plugin was made.
	Plugin []programs.Platform `json:"plugin"`
}

// All writes the whole release, in place of an earlier one.
func (r *Release) All(ctx context.Context) error {
	if err := r.clear(); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return r.Archives(ctx, programs.Arches) },
		func() error { return r.Plugin(ctx) },
		func() error { return r.Images(ctx, programs.Arches) },
		r.Deploy,
		r.writeRecord,
		r.writeChecksums,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Release) writeRecord() error {
	text, err := json.MarshalIndent(record{r.tree.Stamp, r.tree.Go, r.PluginPlatforms}, "", "  ")
	if err != nil {
		return fmt.Errorf("record of the release: %w", err)
	}
	return r.write(Record, append(text, '\n'), "what it was made of")
}

func readRecord(dir string) (was record, err error) {
	text, err := os.ReadFile(filepath.Join(dir, Record))
	if err != nil {
		return record{}, err
	}
	if err := json.Unmarshal(text, &was); err != nil {
		return record{}, fmt.Errorf("%s: %w", Record, err)
	}
	return was, nil
}

// Verify checks the files of the release in dir, makes the release again from the sources at root, and compares. If root is
// a checkout, it must be of the commit that the release names. That commit is built from a copy, without changes that are
// not committed. The registry, if one is given, must be the one that the release installs from.
func Verify(ctx context.Context, root, dir, registry string, log io.Writer) (err error) {
	sums, err := Check(dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "%d files are as %s says\n", len(sums), Checksums)
	defer func() {
		if err != nil {
			err = fmt.Errorf("verify %s: %w", dir, err)
		}
	}()
	was, err := readRecord(dir)
	if err != nil {
		return err
	}
	if registry != "" && registry != was.Registry {
		return fmt.Errorf("it was made for registry %q, not for %s", was.Registry, registry)
	}
	work, err := os.MkdirTemp("", "meshcni-verify-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if source.IsCheckout(root) {
		if root, err = checkedOut(ctx, root, was, filepath.Join(work, "sources")); err != nil {
			return err
		}
	}
	tree, err := source.Open(ctx, root, source.Options{Version: was.Version, Commit: was.Commit, Registry: was.Registry, Epoch: fmt.Sprint(was.Epoch)})
	if err != nil {
		return err
	}
	if tree.Go != was.Go {
		return fmt.Errorf("it was built by %s, but the sources are built by %s", was.Go, tree.Go)
	}
	out := filepath.Join(work, "dist")
	r, err := New(tree, out, io.Discard)
	if err != nil {
		return err
	}
	r.PluginPlatforms = was.Plugin
	if err := errors.Join(r.All(ctx), r.Close()); err != nil {
		return err
	}
	second, err := readChecksums(out)
	if err != nil {
		return err
	}
	if err := same(sums, second); err != nil {
		return err
	}
	fmt.Fprintf(log, "a second build of the sources made the same %d files, byte for byte\n", len(second))
	if tree.Registry != "" {
		fmt.Fprintf(log, "its chart and manifests install from %s\n", tree.Registry)
	}
	if tree.Commit != "" {
		fmt.Fprintf(log, "they are version %s of commit %s\n", tree.Version, tree.Revision())
	}
	return nil
}

// checkedOut returns where the commit is that is checked out at root: in the directory export, or, for a release of a
// checkout with changes, at root itself. What a release says of itself does not decide which commit that is.
func checkedOut(ctx context.Context, root string, was record, export string) (string, error) {
	head, err := source.Head(ctx, root)
	if err != nil {
		return "", err
	}
	if was.Commit != head {
		return "", fmt.Errorf("it says that it is made of commit %q, and checked out is %s", was.Commit, head)
	}
	if was.Modified {
		return root, nil
	}
	return export, source.Export(ctx, root, head, export)
}

// same compares the checksums with those of a second build.
func same(sums, second map[string]string) error {
	var wrong []error
	for name, sum := range second {
		if sums[name] != sum {
			wrong = append(wrong, fmt.Errorf("%s: was %s, is %s in a second build", name, sums[name], sum))
		}
	}
	for name := range sums {
		if second[name] == "" {
			wrong = append(wrong, fmt.Errorf("%s: a second build has no such file", name))
		}
	}
	return joined("not reproduced", wrong)
}

// joined is an error of the errors, sorted by their texts; nil of none.
func joined(what string, errs []error) error {
	if errs == nil {
		return nil
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return fmt.Errorf("%s: %w", what, errors.Join(errs...))
}
