// Package memory keeps the resident memory of a process that mostly waits near what it needs while it waits.
package memory

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// gcPercent bounds the growth of the heap, in percent, until garbage is collected. Go's own default is 100. An agent's heap
	// is some 4 MB, so a collection takes a few milliseconds, and there is one for each 2 MB or so that are allocated.
	gcPercent = 30
	// first bounds the time of the start; again is the interval at which memory is given back after that.
	first, again = 5 * time.Second, 30 * time.Second
)

// Keep gives back what this process does not need, regularly until the context ends. env looks up GOGC and GOMEMLIMIT, Go's own: what
// is set counts. Without GOMEMLIMIT, the heap stays below three quarters of the control group's limit if it can.
func Keep(ctx context.Context, env func(string) (string, bool)) {
	if _, set := env("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
	if _, set := env("GOMEMLIMIT"); !set {
		if limit, ok := groupLimit(os.DirFS("/")); ok {
			debug.SetMemoryLimit(limit / 4 * 3) // the rest is for the pages of programs, ours and those that write rules
		}
	}
	go Regularly(ctx)
}

// Regularly gives back what this process does not need until the context ends: soon after the start, then each half minute.
func Regularly(ctx context.Context) {
	for wait := first; ; wait = again {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			_ = GiveBack() // it is only more than it needs
		}
	}
}

// GiveBack gives back the free part of the heap, and the pages of the program that nobody uses now: most of them were only
// mapped for the start. A page that is needed again is mapped again from the page cache, in some microseconds.
func GiveBack() error {
	debug.FreeOSMemory()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("give back the program's pages: %w", err)
	}
	defer func() { _ = f.Close() }()
	all, err := readOnly(f)
	errs := []error{err}
	for _, m := range all {
		// A program that was just copied to the disk may be in huge pages, of which each would come back as a whole. A kernel that has
		// none refuses this.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_NOHUGEPAGE)
		// The file still has what is there: see readOnly.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			errs = append(errs, fmt.Errorf("give back the program's pages: madvise: %w", errno))
		}
	}
	return errors.Join(errs...)
}

// mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// readOnly returns, of the text of /proc/PID/smaps, the mappings of files that this process cannot write and has no pages of its
// own in. A mapping that a loader has relocated and then made read-only has: giving that back would undo the relocation.
func readOnly(smaps io.Reader) (all []mapping, err error) {
	var m mapping
	candidate := false
	for lines := bufio.NewScanner(smaps); ; {
		if !lines.Scan() {
			return all, lines.Err()
		}
		f := strings.Fields(lines.Text())
		switch {
		case len(f) >= 5 && len(f[1]) == 4: // start-end perms offset device inode path
			if m, err = parse(f[0]); err != nil {
				return nil, err
			}
			candidate = f[1][1] == '-' && f[1][3] == 'p' && len(f) > 5 && strings.HasPrefix(f[5], "/")
		case len(f) == 3 && f[0] == "Anonymous:" && candidate && f[1] == "0":
			all = append(all, m)
		}
	}
}

func parse(text string) (m mapping, err error) {
	from, to, _ := strings.Cut(text, "-")
	start, err1 := strconv.ParseUint(from, 16, strconv.IntSize)
	end, err2 := strconv.ParseUint(to, 16, strconv.IntSize)
	if err := errors.Join(err1, err2); err != nil {
		return m, fmt.Errorf("read the mapping %q: %w", text, err)
	}
	return mapping{uintptr(start), uintptr(end)}, nil
}
