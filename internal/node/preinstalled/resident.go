package preinstalled

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// shed unmaps what the process has of files, the program's among them, and has not changed. What it needs again is mapped again, from the kernel's
// cache: some hundreds of KiB while no pods come, out of the two thirds of the program that a single capture reads.
func shed() error {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	var errs []error
	var begin, end uint64 // of the mapping; 0: it stays
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 5 && strings.Contains(fields[0], "-"): // 00400000-00b0a000 r-xp 00001000 fe:00 1234 /opt/nri/plugins/.meshcni/meshcni
			begin, end = 0, 0
			if mode := fields[1]; fields[4] != "0" && (mode == "r-xp" || mode == "r--p") {
				if begin, end, err = bounds(fields[0]); err != nil {
					return err
				}
			}
		case begin != 0 && fields[0] == "Anonymous:" && fields[1] == "0": // else it has pages that no file has
			if _, _, failed := unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), unix.MADV_DONTNEED); failed != 0 {
				errs = append(errs, fmt.Errorf("unmap %x-%x: %w", begin, end, failed))
			}
		}
	}
	return errors.Join(errs...)
}

func bounds(addresses string) (begin, end uint64, err error) {
	first, second, _ := strings.Cut(addresses, "-")
	begin, err = strconv.ParseUint(first, 16, 64)
	if err == nil {
		end, err = strconv.ParseUint(second, 16, 64)
	}
	return begin, end, err
}
