package testpg

import "syscall"

// inMemory returns a folder whose files are in memory, or "" where there is none with room to spare
// (Docker gives it 64 MB). A copy of a database is 300 files, and creating one takes over a
// millisecond on some machines' disks.
func inMemory() string {
	const dir, room = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if syscall.Statfs(dir, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < room {
		return ""
	}

	return dir
}
