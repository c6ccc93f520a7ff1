/* All-reduce (float, sum) over Open MPI on this machine, as a peer for `longhaul bench
 * collectives`.
 *
 *   mpicc -O2 mpi_all_reduce.c -o mpi_all_reduce
 *   mpirun --allow-run-as-root --oversubscribe -n 2 [--mca btl tcp,self] ./mpi_all_reduce
 * [iterations=20]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(int argc, char **argv)
{
    int rank, ranks, iterations = argc > 1 ? atoi(argv[1]) : 20;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double *times = malloc(sizeof(double) * (size_t)iterations);
    for (size_t size = 1 << 10; size <= 1 << 26; size *= 4) {
        float *x = calloc(size, 1);
        for (int i = -3; i < iterations; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double t = MPI_Wtime();
            MPI_Allreduce(MPI_IN_PLACE, x, (int)(size / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (i >= 0) times[i] = MPI_Wtime() - t;
        }
        qsort(times, (size_t)iterations, sizeof(double), compare);
        double s = times[iterations / 2];
        if (rank == 0) {
            printf("%10zu B  %10.1f us  bus %7.3f GB/s\n", size, s * 1e6,
                   2.0 * (ranks - 1) / ranks * (double)size / s / 1e9);
        }
        free(x);
    }
    free(times);
    MPI_Finalize();
    return 0;
}
